"""Logs: what is not finite has a name, floats read back to the bit, a board does not tell an epoch twice."""

from __future__ import annotations

import csv
import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unhinge.results.json import plain
from unhinge.results.sealed import SealError
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


@pytest.mark.parametrize("name", ["log.jsonl", "times.jsonl"])
def test_a_line_that_was_changed_or_cut_is_an_error_that_names_it(tmp_path, name):
    log = Log(tmp_path, 0)
    for epoch in (1, 2):
        log.add({"epoch": epoch, "accuracy": 0.5}, seconds=0.5)
    whole = (tmp_path / name).read_text()
    for damage in (whole.replace("0.5", "0.9"), whole[:-20]):
        (tmp_path / name).write_text(damage)
        with pytest.raises(SealError, match=rf"line [12] of .*{re.escape(name)}.* Put the file back"):
            read_records(tmp_path) if name == "log.jsonl" else seconds_spent(tmp_path)


def test_lines_behind_the_checkpoint_may_be_damaged_for_they_are_made_again(tmp_path):
    log = Log(tmp_path, 0)
    for epoch in (1, 2):
        log.add({"epoch": epoch}, seconds=0.5)
    first = (tmp_path / "log.jsonl").read_text().splitlines()[0]
    (tmp_path / "log.jsonl").write_text(first + '\n{"epo')
    assert Log(tmp_path, 1).records == [{"epoch": 1}]


def test_seconds_add_up_over_interruptions(tmp_path):
    Log(tmp_path, 0).add({"epoch": 1}, seconds=0.5)
    Log(tmp_path, 0).add({"epoch": 1}, seconds=0.25)
    assert seconds_spent(tmp_path) == 0.75


def test_the_log_goes_on_where_tensorboards_folder_vanished(tmp_path, caplog):
    log = Log(tmp_path, 0)

    class Vanished:
        def add_scalar(self, *_):
            raise FileNotFoundError(2, "No such file or directory")

    log._board = Vanished()
    for epoch in (1, 2):
        log.add({"epoch": epoch, "loss": 1.0}, seconds=0.5)
    assert [record["epoch"] for record in read_records(tmp_path)] == [1, 2]
    assert [record.getMessage()[:38] for record in caplog.records] == ["TensorBoard's files are given up: [Err"]


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
    assert read_records(tmp_path) == [{"epoch": 1}]


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


def test_no_legend_lies_on_the_curves():
    keys = ("train_accuracy", "test_accuracy", "nc1_ratio", "nc2_angle_features", "nc3", "nc4", "prototype_norm_min")
    figure = draw_curves([{"epoch": k, **dict.fromkeys(keys, 1.0 / k)} for k in (1, 2, 3)], "a run")
    figure.canvas.draw()
    legends = [(axis, axis.get_legend()) for axis in figure.axes if axis.get_legend() is not None]
    assert len(legends) == 3
    for axis, legend in legends:
        assert not legend.get_window_extent().overlaps(axis.get_window_extent())


@pytest.mark.parametrize(("last", "drawn"), [(1 - 1e-8, False), (0.9, True)])
def test_prototypes_have_panels_where_they_move(last, drawn):
    records = [
        {"epoch": k, "prototype_norm_ratio": 1.0, "prototype_norm_min": norm} for k, norm in ((1, 1.0), (2, last))
    ]
    titles = [axis.get_title(loc="left") for axis in draw_curves(records, "a run").axes]
    assert ("prototype norms" in titles) == drawn
    assert len(titles) == (6 if drawn else 4)


def test_a_long_title_stays_on_the_picture():
    records = [{"epoch": k, "prototype_norm_min": 1.0} for k in (1, 2)]
    figure = draw_curves(
        records, "digits: unhinged, pal head, radius 10, class weight 0.5, weighted penalty, exp:100, seed 0"
    )
    figure.canvas.draw()
    assert figure._suptitle.get_window_extent().x1 <= figure.bbox.x1
