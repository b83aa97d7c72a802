"""Logs: what is not finite has a name, floats read back to the bit, a board does not tell an epoch twice."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unhinge.results.json import plain
from unhinge.results.tables import as_csv, as_markdown
from unhinge.training.plots import draw_curves
from unhinge.training.records import Log, read_records, seconds_spent


def test_what_is_not_finite_becomes_its_name():
    record = plain({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1, "e": 3, "f": "x"}, names=True)
    assert record == {"a": "nan", "b": "inf", "c": "-inf", "d": 0.1, "e": 3, "f": "x"}
    assert all(math.isnan(float(record[k])) or math.isinf(float(record[k])) for k in "abc")


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(allow_nan=False), min_size=1), min_size=1))
def test_csv_reads_back_to_the_same_bits(records):
    rows = list(csv.DictReader(io.StringIO(as_csv(records))))
    assert [{key: float(value) for key, value in row.items() if value != ""} for row in rows] == records


def test_a_log_is_on_the_disk_after_each_record(tmp_path):
    log = Log(tmp_path, 0)
    for epoch in (1, 2, 3):
        log.add({"epoch": epoch, "loss": 1 / epoch}, seconds=0.5)
        assert read_records(tmp_path) == log.records
    again = Log(tmp_path, 2)
    assert [record["epoch"] for record in again.records] == [1, 2]
    assert again.records == read_records(tmp_path)
    assert (tmp_path / "log.csv").read_text().count("\n") == 3


def test_a_line_cut_short_ends_the_records(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epoc')
    assert [record["epoch"] for record in read_records(tmp_path)] == [1, 2]


def test_a_time_cut_short_by_a_crash_costs_its_own_line_only(tmp_path):
    log = Log(tmp_path, 0)
    log.add({"epoch": 1}, seconds=0.5)
    with (tmp_path / "times.jsonl").open("a") as file:
        file.write('{"epoch": 2, "sec')
    log.add({"epoch": 2}, seconds=0.25)
    assert seconds_spent(tmp_path) == 0.75


def test_tables_escape_what_would_break_them():
    assert as_markdown([{"a": "x|y", "b": 0.123456789}]).splitlines()[-1] == "| x\\|y | 0.12346 |"


def test_tensorboard_tells_a_continued_run_without_gap_or_repetition(tmp_path):
    """Killed after epoch 3 was logged and before its checkpoint: 3 is told again, 2 stays."""
    pytest.importorskip("tensorboard", reason="TensorBoard is optional")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = Log(tmp_path, 0, tensorboard=True)
    for epoch in (1, 2, 3):
        log.add({"epoch": epoch, "loss": float(epoch), "stopped": "no number"}, seconds=1.0)
    log = Log(tmp_path, 2, tensorboard=True)
    log.add({"epoch": 3, "loss": 30.0}, seconds=1.0)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_without_tensorboard_the_log_goes_on(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Log(tmp_path, 0, tensorboard=True).add({"epoch": 1}, seconds=1.0)
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {"epoch": 1}


@pytest.mark.parametrize(
    "records",
    [
        [],
        [{"epoch": 1, "train_loss": "nan", "stopped": "at once"}],
        [
            {"epoch": 1, "train_loss": -1.0, "feature_norm": 1.0},
            {"epoch": 2, "train_loss": "-inf", "feature_norm": 1e30},
        ],
        [{"epoch": 1, "prototype_norm_min": 0.0, "prototype_norm_ratio": "inf", "nc1_ratio": 0.0, "nc3": 1.0}],
    ],
)
def test_curves_are_drawn_of_whatever_was_recorded(records, tmp_path):
    figure = draw_curves(records, "a run")
    figure.savefig(tmp_path / "curves.png")
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    for word in ("loss", "accuracy", "feature norm", "angle", "neural collapse"):
        assert any(word in title for title in titles)
    drawn = {line.get_label(): list(line.get_ydata()) for axis in figure.axes for line in axis.lines}
    norms = [r["feature_norm"] for r in records if "feature_norm" in r]
    assert drawn.get("|h|", []) == norms
