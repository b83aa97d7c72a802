"""Data sets and frames of other libraries give the summary that one process makes of the same rows."""

from __future__ import annotations

import math
import os
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("pyarrow", reason='pip install "unhinge[arrow]"')

import pyarrow as pa

from ray_sessions import ray_session
from stream_makers import CLASSES, WIDTH, examples, table_of, write_parts
from unhinge import summarize
from unhinge.streams import (
    BadRows,
    summarize_batches,
    summarize_dask,
    summarize_dataset,
    summarize_ray,
    summarize_spark,
)


@pytest.fixture
def rows():
    return examples(100, dtype=torch.float32)


def assert_same(found, rows):
    """Equal to one process, up to the rounding of another order of sums."""
    whole = summarize([rows], CLASSES)
    assert torch.equal(found.counts, whole.counts)
    np.testing.assert_allclose(found.sums, whole.sums, rtol=1e-6, atol=1e-5)
    assert found.scatter.item() == pytest.approx(whole.scatter.item(), rel=1e-6)
    assert found.dtype == whole.dtype


def with_one_bad(rows):
    features, labels = rows
    features = features.clone()
    features[11, 3] = math.nan
    return (features, labels), (torch.cat([features[:11], features[12:]]), torch.cat([labels[:11], labels[12:]]))


def check_bad(ask, rows, reason="a feature is NaN or infinite"):
    """`ask(rows, bad)` refuses a bad row, and leaves it out when it may."""
    spoiled, good = with_one_bad(rows)
    with pytest.raises(ValueError, match=rf"1 of 100 rows cannot be used \({reason}: 1\)"):
        ask(spoiled, None)
    bad = BadRows()
    assert_same(ask(spoiled, bad), good)
    assert bad.counts == {reason: 1}


# ---- Arrow ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["fixed", "list"])
def test_batches_and_sliced_tables(rows, form):
    table = table_of(*rows, form)
    assert_same(summarize_batches(table.to_batches(max_chunksize=7), num_classes=CLASSES), rows)
    assert_same(summarize_batches([table.slice(0, 33), table.slice(33)], num_classes=CLASSES), rows)
    joined = pa.concat_tables([table.slice(0, 33), table.slice(33)])
    assert_same(summarize_batches([joined], num_classes=CLASSES), rows)
    names = [f"f{k}" for k in range(WIDTH)]
    assert_same(summarize_batches([table_of(*rows, "columns")], names, num_classes=CLASSES), rows)


def test_a_tensor_column_is_a_column_of_lists(rows):
    features, labels = rows
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(features.numpy())
    table = pa.table({"features": tensors, "label": labels.numpy()})
    assert_same(summarize_batches(table.to_batches(), num_classes=CLASSES), rows)


def test_bad_rows_of_batches(rows):
    check_bad(lambda some, bad: summarize_batches(table_of(*some).to_batches(9), num_classes=CLASSES, bad=bad), rows)
    with pytest.raises(ValueError, match="there are no rows"):
        summarize_batches([], num_classes=3)


# ---- Hugging Face --------------------------------------------------------------------------------------------------


@pytest.fixture
def datasets(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("datasets", reason='pip install "unhinge[integrations]"')


def test_a_dataset_of_hugging_face(rows, datasets, tmp_path):
    dataset = datasets.Dataset(table_of(*rows))
    assert_same(summarize_dataset(dataset, num_classes=CLASSES), rows)
    parts = [summarize_dataset(dataset.shard(3, k), num_classes=CLASSES) for k in range(3)]
    assert_same(parts[0] + parts[1] + parts[2], rows)
    folder = write_parts(tmp_path / "data", table_of(*rows))
    streamed = datasets.load_dataset(
        "parquet", data_files=str(folder / "*.parquet"), split="train", streaming=True, cache_dir=str(tmp_path / "c")
    )
    assert_same(summarize_dataset(streamed, num_classes=CLASSES), rows)
    check_bad(
        lambda some, bad: summarize_dataset(datasets.Dataset(table_of(*some)), num_classes=CLASSES, bad=bad), rows
    )


def test_a_dataset_knows_its_classes(rows, datasets):
    dataset = datasets.Dataset(table_of(*rows))
    with pytest.raises(ValueError, match="pass num_classes"):
        summarize_dataset(dataset)
    named = dataset.cast_column("label", datasets.ClassLabel(names=list("abcde")))
    assert_same(summarize_dataset(named), rows)


# ---- Ray, Dask, Spark ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray.data", reason='pip install "unhinge[ray]"')
    with ray_session(2) as ray:
        yield ray


@pytest.mark.filterwarnings("ignore:`use_:DeprecationWarning")  # Ray warns of options that it sets itself
def test_a_dataset_of_ray(rows, ray):
    def ask(some, bad):
        dataset = ray.data.from_arrow(table_of(*some)).repartition(4)
        return summarize_ray(dataset, num_classes=CLASSES, bad=bad)

    assert_same(ask(rows, None), rows)
    check_bad(ask, rows)


def test_a_frame_of_dask(rows, tmp_path):
    frames = pytest.importorskip("dask.dataframe", reason='pip install "unhinge[dask]" pandas')
    names = [f"f{k}" for k in range(WIDTH)]

    def ask(some, bad):
        frame = frames.from_pandas(table_of(*some, "columns").to_pandas(), npartitions=4)
        return summarize_dask(frame, names, num_classes=CLASSES, bad=bad)

    assert_same(ask(rows, None), rows)
    check_bad(ask, rows, "a feature or label is missing")  # which is what NaN means in pandas


def test_lists_in_a_frame_of_dask(rows):
    dask = pytest.importorskip("dask", reason='pip install "unhinge[dask]"')
    frames = pytest.importorskip("dask.dataframe", reason='pip install "unhinge[dask]" pandas')
    pandas = table_of(*rows, "list").to_pandas()
    with dask.config.set({"dataframe.convert-string": False}):
        assert_same(summarize_dask(frames.from_pandas(pandas, npartitions=4), num_classes=CLASSES), rows)
    with (
        dask.config.set({"dataframe.convert-string": True}),
        pytest.raises(ValueError, match="string, but features are lists of numbers"),
    ):
        summarize_dask(frames.from_pandas(pandas, npartitions=4), num_classes=CLASSES)


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason='pip install "unhinge[integrations]", and a Java runtime')
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        session = (
            sql.SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
    except Exception as error:  # no Java, or another one than Spark wants
        pytest.skip(f"Spark does not start: {str(error).splitlines()[0]}")
    yield session
    session.stop()


def test_a_frame_of_spark(rows, spark, tmp_path):
    def ask(some, bad):
        folder = write_parts(tmp_path / str(bad is None), table_of(*some, "list"))
        frame = spark.read.parquet(str(folder)).repartition(3)
        return summarize_spark(frame, num_classes=CLASSES, bad=bad)

    assert_same(ask(rows, None), rows)
    check_bad(ask, rows)


def test_the_width_is_that_of_most_rows_and_bad_rows_have_their_partition():
    dask = pytest.importorskip("dask", reason="dask is not installed")
    import dask.dataframe as dd
    import pandas as pd

    rows = [[float(k), 1.0, 2.0] for k in range(40)]
    rows[0], rows[35] = [1.0], [math.inf, 0.0, 0.0]
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(pd.DataFrame({"features": rows, "label": [0, 1] * 20}), npartitions=4)
        hollow = pd.DataFrame({"features": [None] * 10 + rows[10:20], "label": [0, 1] * 10})
        partly = dd.from_pandas(hollow, npartitions=2)
    bad = BadRows()
    found = summarize_dask(frame, num_classes=2, bad=bad)
    assert found.counts.tolist() == [19, 19]
    assert sorted(bad.places) == [
        "partition 0, row 0: the number of features differs",
        "partition 3, row 5: a feature is NaN or infinite",
    ]
    missing = BadRows()
    assert summarize_dask(partly, num_classes=2, bad=missing).counts.tolist() == [5, 5]
    assert missing.counts == {"a feature or label is missing": 10}


def test_a_part_in_which_every_number_or_label_is_missing_is_one_of_bad_rows():
    """Arrow gives such a column of pandas a type of its own."""
    whole = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]})
    bad = BadRows()
    hollow = [
        pa.table({"a": [1.0], "b": [3.0], "label": pa.nulls(1)}),
        pa.table({"a": [1.0], "b": pa.nulls(1), "label": [1]}),
    ]
    assert summarize_batches([whole, *hollow], ["a", "b"], num_classes=2, bad=bad).counts.tolist() == [1, 1]
    assert bad.counts == {"a feature or label is missing": 2}


def test_two_columns_of_one_name_are_refused():
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0]), pa.array([0])], names=["a", "a", "label"])
    with pytest.raises(ValueError, match="there are 2 columns 'a'; rename all but one"):
        summarize_batches([table], ["a"], num_classes=2)


def test_what_is_no_stream_of_batches_is_named():
    table = pa.table({"features": [[1.0], [2.0]], "label": [0, 1]})
    for wrong, told in ((table, "got one Table"), ([1, 2], "got int"), (None, "got one NoneType")):
        with pytest.raises(ValueError, match=told):
            summarize_batches(wrong, num_classes=2)
    for classes in (0, "4"):
        with pytest.raises(ValueError, match="num_classes must be a whole number"):
            summarize_batches([table], num_classes=classes)
    with pytest.raises(ValueError, match="at least one column"):
        summarize_batches([table], [], num_classes=2)
