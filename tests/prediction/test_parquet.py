"""`unhinge predict` on Parquet files says what it says of the same rows in one array."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("pyarrow", reason='pip install "unhinge[arrow]"')

from stream_makers import examples, table_of, write_parts
from unhinge.cli import app
from unhinge.streams import parquet


def said(*arguments):
    done = CliRunner().invoke(app, ["predict", *map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_folder_of_parquet_is_predicted_as_one_array(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "UNIT_ROWS", 20)
    features, labels = examples()
    folder = write_parts(tmp_path / "rows.parquet", table_of(features, labels))
    np.savez(tmp_path / "rows.npz", features=features.numpy(), labels=labels.numpy())
    streamed, whole = said(folder), said(tmp_path / "rows.npz")
    assert streamed["setting"] == whole["setting"]
    for name in ("rate", "growth", "critical_decay", "limit_accuracy"):
        assert streamed[name] == pytest.approx(whole[name], rel=1e-9)
    for name, value in whole["collapse_now"].items():
        assert streamed["collapse_now"][name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


def test_with_a_folder_the_same_command_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "UNIT_ROWS", 20)
    folder = write_parts(tmp_path / "rows.parquet", table_of(*examples()))
    first = said(folder, "--out", tmp_path / "out")
    read = []
    monkeypatch.setattr(parquet, "_read", lambda unit, **how: read.append(unit))
    assert said(folder, "--out", tmp_path / "out") == first
    assert read == []


def test_bad_rows_and_wrong_engines_are_refused_in_one_line(tmp_path):
    features, labels = examples(20)
    features[3, 0] = float("nan")
    folder = write_parts(tmp_path / "rows.parquet", table_of(features, labels), 1)
    for arguments, told in (([], "1 of 20 rows cannot be used"), (["--engine", "spark"], "local, dask, ray")):
        done = CliRunner().invoke(app, ["predict", str(folder), *arguments])
        assert done.exit_code == 2
        assert told in done.stderr
        assert "\n" not in done.stderr.strip()  # around it, what a bar leaves that is no terminal


def test_bad_rows_are_left_out_where_that_is_asked_for_and_counted(tmp_path):
    features, labels = examples()
    file = write_parts(tmp_path / "good.parquet", table_of(features, labels))
    spoiled = features.clone()
    spoiled[3] = float("nan")
    bad = write_parts(tmp_path / "bad.parquet", table_of(spoiled, labels))
    refused = CliRunner().invoke(app, ["predict", str(bad)])
    assert refused.exit_code == 2
    assert "--skip-bad" in refused.output
    assert "BadRows" not in refused.output
    done = CliRunner().invoke(app, ["predict", str(bad), "--skip-bad", "--json"])
    assert done.exit_code == 0, done.output
    assert "1 rows were left out (a feature is NaN or infinite: 1)" in done.stderr
    assert json.loads(done.stdout)["setting"]["num_samples"] == said(file)["setting"]["num_samples"] - 1
