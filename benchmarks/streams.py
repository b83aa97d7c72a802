"""Summaries of Parquet files: one process, two, and the reading of the same columns alone.

    python benchmarks/streams.py [--rows 10000000] [--width 256] [--folder DIR] [--quick]

The limit is 1.5 times the reading. Files are made once, of random float32 in lists of fixed size, uncompressed, and are
in the cache of the system when they are read: the slowest case for us, since the disk then hides nothing. Processor
time is that of all processes, with what it takes the workers to start; on a busy machine it is the one to compare.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from unhinge.streams import summarize_parquet

CLASSES = 1000
FILES = 8


def write(folder: Path, rows: int, width: int) -> None:
    random = np.random.default_rng(0)
    each = rows // FILES
    for k in range(FILES):
        schema = pa.schema({"features": pa.list_(pa.float32(), width), "label": pa.int64()})
        with pq.ParquetWriter(folder / f"part-{k}.parquet", schema, compression="none", use_dictionary=False) as file:
            for start in range(0, each, 1 << 16):
                count = min(1 << 16, each - start)
                flat = pa.array(random.standard_normal(count * width, dtype=np.float32))
                labels = pa.array(random.integers(0, CLASSES, count))
                file.write_table(pa.table([pa.FixedSizeListArray.from_arrays(flat, width), labels], schema))


def read(folder: Path, width: int) -> int:
    """Decode the two columns in batches of the size that the summary takes, in one process; nothing else."""
    rows = 0
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(max(1, (1 << 21) // width), columns=["features", "label"]):
                rows += batch.num_rows
    return rows


TICK = 0.01  # seconds: what os.times counts in, so a shorter reading would take no time at all


def processor() -> float:
    """Processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="keep the files here")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the rows, once")
    chosen = parser.parse_args()
    rows, repeats = (chosen.rows // 50, 1) if chosen.quick else (chosen.rows, chosen.repeats)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            write(folder, rows, chosen.width)
        size = sum(path.stat().st_size for path in folder.iterdir())
        ways = {
            "reading alone": lambda: read(folder, chosen.width),
            "one process": lambda: summarize_parquet(folder, num_classes=CLASSES).size,
            "two processes": lambda: summarize_parquet(folder, num_classes=CLASSES, workers=2).size,
        }
        print(f"{rows:,} rows x {chosen.width}, {size / 1e9:.2f} GB, {CLASSES} classes; best of {repeats}")
        print(f"Python {platform.python_version()}, torch {torch.__version__}, pyarrow {pa.__version__}", end=", ")
        print(f"{os.cpu_count()} cores\n")
        print("| | seconds | of the reading | GB/s | processor seconds | of the reading |\n|---|---|---|---|---|---|")
        reading: tuple[float, float] | None = None
        for name, work in ways.items():
            took, spent = [], []
            for _ in range(repeats):
                start, before = time.perf_counter(), processor()
                assert work() == rows // FILES * FILES
                took.append(time.perf_counter() - start)
                spent.append(processor() - before)
            best, least = min(took), max(min(spent), TICK)
            reading = reading or (best, least)
            row = f"{best:.2f} | {best / reading[0]:.2f} | {size / best / 1e9:.2f}"
            print(f"| {name} | {row} | {least:.2f} | {least / reading[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
