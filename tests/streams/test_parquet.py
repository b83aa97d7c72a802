"""Parquet files give the summary of their rows: for every form of columns, engine and interruption; nothing is lost."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("pyarrow", reason='pip install "unhinge[arrow]"')

import pyarrow as pa
import pyarrow.parquet as pq

from ray_sessions import ray_session
from stream_makers import CLASSES, WIDTH, examples, table_of, write_parts
from unhinge import LayerPeeled, summarize
from unhinge.metrics import neural_collapse
from unhinge.streams import BadRows, engines, parquet, summarize_parquet
from unhinge.streams.part import Part


def oracle(features, labels, classes=CLASSES):
    """Counts, means and scatter, from their definitions."""
    x, y = features.double().numpy(), labels.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(classes)])
    return np.bincount(y, minlength=classes), means, ((x - means[y]) ** 2).sum()


def assert_summary(found, features, labels):
    counts, means, scatter = oracle(features, labels)
    assert found.counts.tolist() == counts.tolist()
    tight = 64 * torch.finfo(features.dtype).eps
    np.testing.assert_allclose(found.means().numpy(), means, rtol=tight, atol=tight)
    assert found.scatter.item() == pytest.approx(scatter, rel=tight)
    assert found.dtype == features.dtype


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    """Units of twenty rows and batches of a few: many of each, as in large files."""
    monkeypatch.setattr(parquet, "UNIT_ROWS", 20)
    monkeypatch.setattr(parquet, "BATCH_NUMBERS", 7 * WIDTH)


# ---- the same numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("form", ["fixed", "list", "large_list", "columns"])
def test_files_give_the_summary_of_their_rows(tmp_path, form, dtype):
    features, labels = examples(dtype=dtype)
    folder = write_parts(tmp_path / "data", table_of(features, labels, form))
    names = "features" if form != "columns" else [f"f{k}" for k in range(WIDTH)]
    actual = summarize_parquet(folder, features=names, label="label")
    if dtype == torch.float16:  # summed in half precision, as summarize does
        assert actual.counts.tolist() == oracle(features, labels)[0].tolist()
        whole = summarize([(features, labels)], CLASSES)
        np.testing.assert_allclose(actual.means(), whole.means(), rtol=0.02, atol=0.02)
    else:
        assert_summary(actual, features, labels)


def test_the_path_from_files_is_the_path_from_memory(tmp_path):
    features, labels = examples()
    weight = torch.randn(CLASSES, WIDTH, dtype=torch.float64)
    summary = summarize_parquet(write_parts(tmp_path / "data", table_of(features, labels)))
    streamed = LayerPeeled.from_summary(summary).flow(summary, weight, lr=0.1)
    direct = LayerPeeled(labels, CLASSES).flow(features, weight, lr=0.1)
    for time in (0, 3, 50):
        assert streamed.loss(time).item() == pytest.approx(direct.loss(time).item(), rel=1e-12)
        assert streamed.distance(time).item() == pytest.approx(direct.distance(time).item(), rel=1e-10)


def test_integer_features_and_float_labels_are_taken_as_what_they_say(tmp_path):
    features, labels = torch.arange(40 * WIDTH).view(40, WIDTH), torch.arange(40) % CLASSES
    table = table_of(features, labels.double(), "list")
    assert_summary(summarize_parquet(write_parts(tmp_path / "data", table)), features.double(), labels)


def test_soft_labels_are_summed_as_summarize_sums_them(tmp_path):
    features, _ = examples(60)
    soft = torch.rand(60, CLASSES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    soft /= soft.sum(1, keepdim=True)
    table = table_of(features, torch.zeros(60, dtype=torch.int64)).drop_columns(["label"])
    table = table.append_column("label", pa.FixedSizeListArray.from_arrays(pa.array(soft.numpy().reshape(-1)), CLASSES))
    actual = summarize_parquet(write_parts(tmp_path / "data", table))
    whole = summarize([(features, soft)], CLASSES)
    assert actual.size == 60
    torch.testing.assert_close(actual.factor.T @ actual.factor, whole.factor.T @ whole.factor)
    torch.testing.assert_close(actual.factor.T @ actual.rows, whole.factor.T @ whole.rows)
    torch.testing.assert_close(actual.scatter, whole.scatter)


def test_one_file_a_list_of_files_and_a_folder_are_the_same_rows(tmp_path):
    features, labels = examples()
    table = table_of(features, labels)
    folder = write_parts(tmp_path / "data", table)
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=10)
    for path in (tmp_path / "one.parquet", sorted(folder.iterdir()), str(folder)):
        assert_summary(summarize_parquet(path), features, labels)


def test_only_the_named_columns_are_read(tmp_path, monkeypatch):
    """Column pruning: the column of names is larger than all features, and no reader asks for it."""
    folder = write_parts(tmp_path / "data", table_of(*examples()))
    asked = []
    real = pq.ParquetFile.iter_batches

    def watched(self, batch_size, row_groups=None, columns=None, **more):
        asked.append(columns)
        return real(self, batch_size, row_groups, columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    summarize_parquet(folder)
    assert asked
    assert all(columns is not None and "name" not in columns for columns in asked)


@pytest.mark.parametrize("statistics", [True, False])
def test_the_number_of_classes_comes_from_the_statistics_or_from_the_label_column(tmp_path, statistics):
    features, labels = examples()
    pq.write_table(table_of(features, labels), tmp_path / "a.parquet", 10, write_statistics=statistics)
    assert summarize_parquet(tmp_path / "a.parquet").num_classes == CLASSES
    assert summarize_parquet(tmp_path / "a.parquet", num_classes=9).num_classes == 9


# ---- many hands ----------------------------------------------------------------------------------------------------


def same_bits(one, other):
    return (
        torch.equal(one.counts, other.counts)
        and torch.equal(one.sums, other.sums)
        and torch.equal(one.scatter, other.scatter)
    )


@pytest.fixture(scope="module", params=["local", "dask", "ray"])
def engine(request):
    if request.param == "local":
        yield request.param
        return
    pytest.importorskip(request.param, reason=f'pip install "unhinge[{request.param}]"')
    with ray_session(2) if request.param == "ray" else nullcontext():  # one session for all tests: it takes seconds
        yield request.param


def test_two_workers_give_the_bits_of_one(tmp_path, engine):
    folder = write_parts(tmp_path / "data", table_of(*examples()))
    assert same_bits(summarize_parquet(folder, engine=engine, workers=2), summarize_parquet(folder))


def test_every_engine_counts_and_names_bad_rows(tmp_path, engine):
    table, features, labels = spoiled()
    folder = write_parts(tmp_path / "data", table)
    with pytest.raises(ValueError, match=r"9 of 60 rows cannot be used .*part-0\.parquet, row 5"):
        summarize_parquet(folder, num_classes=CLASSES, engine=engine, workers=2)
    bad = BadRows()
    found = summarize_parquet(folder, num_classes=CLASSES, engine=engine, workers=2, bad=bad)
    assert_summary(found, features, labels)
    assert bad.counts == COUNTS
    assert len(bad.places) == 9


def test_every_engine_goes_on_after_an_interruption(tmp_path, engine):
    folder = write_parts(tmp_path / "data", table_of(*examples()))
    with pytest.raises(Interrupted):
        summarize_parquet(folder, engine=engine, workers=2, resume=tmp_path / "kept", progress=partial(stop_after, 2))
    ticks = []
    again = summarize_parquet(
        folder, engine=engine, workers=2, resume=tmp_path / "kept", progress=lambda done, total: ticks.append(done)
    )
    assert ticks[0] == 2
    assert same_bits(again, summarize_parquet(folder))


def test_a_dask_cluster_in_use_is_used(tmp_path):
    distributed = pytest.importorskip("distributed", reason='pip install "unhinge[dask]"')
    folder = write_parts(tmp_path / "data", table_of(*examples()))
    alone = summarize_parquet(folder)
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        assert engines._dask_client() is not None
        assert same_bits(summarize_parquet(folder, engine="dask", workers=2), alone)


def _late_first(task):
    """The first tasks take longest."""
    import time

    time.sleep(0.2 if task < 2 else 0)
    return task


def test_answers_come_in_the_order_of_the_tasks():
    assert list(engines.in_order(_late_first, range(8), workers=2)) == list(range(8))


def test_a_wrong_engine_is_refused(tmp_path):
    folder = write_parts(tmp_path / "data", table_of(*examples()))
    with pytest.raises(ValueError, match="engine must be one of local, dask, ray, got 'spark'"):
        summarize_parquet(folder, engine="spark")
    with pytest.raises(ValueError, match="workers must be at least 1"):
        summarize_parquet(folder, workers=0)


# ---- interruptions -------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


def stop_after(wanted: int, done: int, total: int) -> None:
    if done == wanted:
        raise Interrupted


@pytest.mark.parametrize("wanted", [0, 1, 4])
def test_an_interrupted_pass_goes_on_to_the_same_bits_and_reads_nothing_twice(tmp_path, monkeypatch, wanted):
    folder = write_parts(tmp_path / "data", table_of(*examples()))
    whole = summarize_parquet(folder)
    with pytest.raises(Interrupted):
        summarize_parquet(folder, resume=tmp_path / "kept", progress=partial(stop_after, wanted))
    read = []
    real = parquet._read

    def watched(unit, **how):
        read.append(unit)
        return real(unit, **how)

    monkeypatch.setattr(parquet, "_read", watched)
    ticks = []
    again = summarize_parquet(
        folder, resume=tmp_path / "kept", progress=lambda done, total: ticks.append((done, total))
    )
    assert same_bits(again, whole)
    units = ticks[-1][1]
    assert len(read) == units - wanted
    assert ticks == [(k, units) for k in range(wanted, units + 1)]
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_bad_rows_found_before_an_interruption_are_not_forgotten(tmp_path):
    features, labels = examples()
    features[3, 2] = math.nan
    folder = write_parts(tmp_path / "data", table_of(features, labels))
    with pytest.raises(Interrupted):
        summarize_parquet(folder, resume=tmp_path / "kept", progress=partial(stop_after, 2))
    with pytest.raises(ValueError, match=r"1 of 100 rows cannot be used .*part-0\.parquet, row 3"):
        summarize_parquet(folder, resume=tmp_path / "kept")


def test_a_kept_pass_over_other_files_is_refused_and_a_damaged_one_begun_again(tmp_path):
    folder = write_parts(tmp_path / "data", table_of(*examples()))
    whole = summarize_parquet(folder, resume=tmp_path / "kept")
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(kept.read_bytes()[:-50])
    assert same_bits(summarize_parquet(folder, resume=tmp_path / "kept"), whole)
    with pytest.raises(ValueError, match="keeps a pass over other files, columns or classes"):
        summarize_parquet(folder, num_classes=7, resume=tmp_path / "kept")
    write_parts(folder, table_of(*examples(seed=1)))
    with pytest.raises(ValueError, match="keeps a pass over other files"):
        summarize_parquet(folder, resume=tmp_path / "kept")


def test_a_part_survives_as_bytes_and_nothing_else_is_read():
    features, labels = examples()
    bad = BadRows()
    bad.note("a feature is NaN or infinite", "file", [3])
    part = Part(summarize([(features, labels)], CLASSES), bad, 101)
    again = Part.from_bytes(part.to_bytes())
    assert same_bits(again.content, part.content)
    assert (again.bad, again.rows, again.content.dtype) == (bad, 101, features.dtype)
    for wrong in (b"", b"PK", part.to_bytes()[:-30], part.to_bytes().replace(b"HardSummary", b"Exploit1234")):
        with pytest.raises(ValueError, match="no part of a summary"):
            Part.from_bytes(wrong)


# ---- rows that cannot be used --------------------------------------------------------------------------------------


def spoiled():
    """A table with one row of each kind of fault, and which rows are left."""
    features, labels = examples(60)
    lists, marks = [row.tolist() for row in features], labels.tolist()
    lists[5][2] = math.nan
    lists[17][0] = math.inf
    lists[21] = lists[21][:3]
    lists[22] = None
    lists[23][4] = None
    marks[30], marks[31], marks[32] = -1, CLASSES, None
    lists[40][0], marks[40] = math.nan, 99  # two faults, one row
    wrong = {5, 17, 21, 22, 23, 30, 31, 32, 40}
    good = [k for k in range(60) if k not in wrong]
    table = pa.table({"features": pa.array(lists, pa.list_(pa.float64())), "label": pa.array(marks, pa.int64())})
    return table, features[good], labels[good]


COUNTS = {
    "a feature is NaN or infinite": 4,
    "the number of features differs": 1,
    "a feature or label is missing": 2,
    "the label is out of range": 2,
}


def test_bad_rows_are_an_error_that_counts_and_names_them(tmp_path):
    folder = write_parts(tmp_path / "data", spoiled()[0])
    with pytest.raises(ValueError, match="9 of 60 rows cannot be used") as caught:
        summarize_parquet(folder, num_classes=CLASSES)
    told = str(caught.value)
    for reason, count in COUNTS.items():
        assert f"{reason}: {count}" in told
    assert "part-0.parquet, row 5: a feature is NaN or infinite" in told
    assert "part-0.parquet, row 17: a feature is NaN or infinite" in told
    assert "part-1.parquet, row 1: the number of features differs" in told
    assert "pass bad=BadRows()" in told


def test_bad_rows_can_be_left_out_and_are_still_counted(tmp_path):
    table, features, labels = spoiled()
    folder = write_parts(tmp_path / "data", table)
    bad = BadRows()
    actual = summarize_parquet(folder, num_classes=CLASSES, bad=bad)
    assert_summary(actual, features, labels)
    assert bad.counts == COUNTS
    assert bad.total == 9
    assert len(bad.places) == 9
    assert actual.size + bad.total == 60


def test_a_number_missing_in_its_own_column_is_named_as_missing(tmp_path):
    features, labels = examples(20)
    table = table_of(features, labels, "columns")
    values = table.column("f1").to_pylist()
    values[7] = None
    table = table.set_column(table.schema.get_field_index("f1"), "f1", pa.array(values, pa.float64()))
    bad = BadRows()
    summarize_parquet(
        write_parts(tmp_path / "d", table, 1), [f"f{k}" for k in range(WIDTH)], num_classes=CLASSES, bad=bad
    )
    assert bad.counts == {"a feature or label is missing": 1}
    assert bad.places[0].endswith("part-0.parquet, row 7: a feature or label is missing")


def test_labels_with_a_fraction_and_soft_labels_that_are_no_distribution_are_named(tmp_path):
    features, labels = examples(20)
    marks = labels.double()
    marks[4], marks[5], marks[6] = 0.5, math.nan, math.inf
    bad = BadRows()
    folder = write_parts(tmp_path / "a", table_of(features, marks), 1)
    summarize_parquet(folder, num_classes=CLASSES, bad=bad)
    assert bad.counts == {"the label is no whole number": 2, "the label is out of range": 1}
    soft = torch.nn.functional.one_hot(labels, CLASSES).double()
    soft[3, 0] += 0.1
    soft[9, 0], soft[9, 1] = 1.5, -0.5
    table = table_of(features, labels).drop_columns(["label"])
    table = table.append_column("label", pa.FixedSizeListArray.from_arrays(pa.array(soft.numpy().reshape(-1)), CLASSES))
    bad = BadRows()
    summarize_parquet(write_parts(tmp_path / "b", table, 1), bad=bad)
    assert bad.counts["the soft label is no distribution"] == 2


def test_a_file_of_another_width_is_named_row_by_row(tmp_path):
    features, labels = examples(40)
    folder = write_parts(tmp_path / "data", table_of(features, labels), 1)
    pq.write_table(table_of(features[:4, :3].contiguous(), labels[:4]), folder / "part-9.parquet")
    bad = BadRows()
    assert_summary(summarize_parquet(folder, bad=bad), features, labels)
    assert bad.counts == {"the number of features differs": 4}


def test_only_bad_rows_are_an_error_either_way(tmp_path):
    features, labels = examples(10)
    folder = write_parts(tmp_path / "data", table_of(features * math.nan, labels), 1)
    for bad in (None, BadRows()):
        with pytest.raises(ValueError, match="10 of 10 rows cannot be used"):
            summarize_parquet(folder, bad=bad)


def test_one_absurd_label_does_not_ask_for_memory(tmp_path):
    features, labels = examples(20)
    labels[3] = 10**12
    folder = write_parts(tmp_path / "data", table_of(features, labels), 1)
    with pytest.raises(ValueError, match=r"999,999,999,999|1,000,000,000,000"):
        summarize_parquet(folder)
    with pytest.raises(ValueError, match="1 of 20 rows cannot be used"):
        summarize_parquet(folder, num_classes=CLASSES)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_labels_may_be_words(tmp_path, kind):
    """Numbered in the order of the alphabet, over all files: no single file has every word."""
    features, labels = examples()
    order = labels.argsort(stable=True)
    features, labels = features[order], labels[order]
    words = np.array(["ant", "bee", "cat", "dog", "eel"])[labels.numpy()]
    table = table_of(features, labels).set_column(1, "label", pa.array(words).cast(kind))
    actual = summarize_parquet(write_parts(tmp_path / "data", table))
    assert_summary(actual, features, labels)


def test_a_missing_word_is_a_bad_row_and_a_column_of_texts_names_no_classes(tmp_path, monkeypatch):
    features, labels = examples(20)
    words = ["ant", None, "bee", *["cat"] * 17]
    table = table_of(features, labels).set_column(1, "label", pa.array(words))
    folder = write_parts(tmp_path / "data", table, 1)
    bad = BadRows()
    assert summarize_parquet(folder, bad=bad).counts.tolist() == [1, 1, 17]
    assert bad.counts == {"a feature or label is missing": 1}
    pq.write_table(table.slice(0, 3).set_column(1, "label", pa.nulls(3)), folder / "part-1.parquet")
    assert summarize_parquet(folder, bad=BadRows()).counts.tolist() == [1, 1, 17]
    monkeypatch.setattr(parquet, "MOST_CLASSES", 19)
    with pytest.raises(ValueError, match="does not name classes"):
        summarize_parquet(folder, label="name")


# ---- words for what is no such file --------------------------------------------------------------------------------


def test_what_cannot_be_read_is_told_in_one_line(tmp_path):
    features, labels = examples(20)
    folder = write_parts(tmp_path / "data", table_of(features, labels), 1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.parquet").write_bytes(b"PAR1 and then nothing")
    none = table_of(features, labels).slice(0, 0)
    pq.write_table(none, tmp_path / "none.parquet")
    words = table_of(features, labels).set_column(1, "label", pa.array(["cat"] * 20))
    pq.write_table(words, tmp_path / "words.parquet")
    for arguments, told in (
        ({"path": tmp_path / "absent"}, "there is no file or folder"),
        ({"path": None}, "path must be a file, a folder or a list of them, got NoneType"),
        ({"path": folder, "bad": True}, r"bad must be a BadRows\(\)"),
        ({"path": tmp_path / "empty"}, "there are no Parquet files in"),
        ({"path": []}, "the list of paths is empty"),
        ({"path": tmp_path / "no.parquet"}, "Parquet"),
        ({"path": tmp_path / "none.parquet"}, "the files hold no rows"),
        ({"path": folder, "features": "pixels"}, "has no column 'pixels'; it has features, label, name"),
        ({"path": folder, "label": "target"}, "has no column 'target'"),
        ({"path": folder, "features": "name"}, "holds string, but features are lists of numbers"),
        ({"path": folder, "features": ["name"]}, "holds string, but features must be numbers"),
        ({"path": tmp_path / "words.parquet", "num_classes": 3}, "names 1 classes, but num_classes is 3"),
        ({"path": [tmp_path / "words.parquet", folder]}, "holds words in some of the files, but not in"),
        ({"path": [folder, tmp_path / "words.parquet"]}, "labels are whole numbers from 0"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            summarize_parquet(**arguments)
        assert "\n" not in str(caught.value)


# ---- what else the same pass can sum -------------------------------------------------------------------------------


def test_the_measures_of_collapse_from_files_are_those_from_memory(tmp_path):
    features, labels = examples()
    folder = write_parts(tmp_path / "data", table_of(features, labels))
    actual = parquet.collapse_of_parquet(folder).measures()
    weight = torch.randn(CLASSES, WIDTH, dtype=torch.float64)
    whole = neural_collapse(features, weight, labels)
    for name in ("nc1", "nc2_norm_features", "nc2_angle_features"):
        torch.testing.assert_close(torch.as_tensor(actual[name]).double(), torch.as_tensor(whole[name]).double())


def test_empty_lists_wrong_numbers_of_classes_and_a_file_to_resume_in_are_refused(tmp_path):
    hollow, good = tmp_path / "hollow.parquet", tmp_path / "good.parquet"
    pq.write_table(pa.table({"features": pa.array([[], []], pa.list_(pa.float64())), "label": [0, 1]}), hollow)
    pq.write_table(pa.table({"features": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]}), good)
    with pytest.raises(ValueError, match="holds empty lists"):
        summarize_parquet(hollow)
    for classes in (0, -3):
        with pytest.raises(ValueError, match="num_classes must be a whole number"):
            summarize_parquet(good, num_classes=classes)
    with pytest.raises(ValueError, match="resume must name a folder"):
        summarize_parquet(good, resume=hollow)


def test_labels_that_are_lists_in_a_later_file_are_named(tmp_path):
    pq.write_table(pa.table({"features": [[1.0], [2.0]], "label": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"features": [[1.0]], "label": [[0.5, 0.5]]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"whole numbers in some of the files, but not in .*b\.parquet"):
        summarize_parquet(tmp_path)
