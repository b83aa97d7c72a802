"""UnhingedClassifier beside scikit-learn's NearestCentroid, RidgeClassifier and LogisticRegression.

    python benchmarks/sklearn_compare.py [--json]

On the data sets that scikit-learn ships, standardized, by repeated stratified 5-fold cross-validation, with clean
labels and with 20 % and 40 % of the labels replaced by another class at random. Accuracy is against clean test labels;
calibration against test labels as noisy as those of the training, and against clean ones. Then the time to fit and to
predict on made-up data of a larger size, best of several. One thread.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import unhinge
from unhinge.metrics import expected_calibration_error
from unhinge.sklearn import UnhingedClassifier

DATA: dict[str, Callable[..., Any]] = {
    "iris": load_iris,
    "wine": load_wine,
    "breast cancer": load_breast_cancer,
    "digits": load_digits,
}
NOISE = (0.0, 0.2, 0.4)
MODELS: dict[str, Any] = {
    "unhinged": UnhingedClassifier(),
    "unhinged, score penalty 1": UnhingedClassifier(logit_penalty=1.0, alpha=0.01),
    "unhinged, rbf kernel": UnhingedClassifier(kernel="rbf"),
    "NearestCentroid": NearestCentroid(),
    "RidgeClassifier": RidgeClassifier(),
    "LinearDiscriminantAnalysis": LinearDiscriminantAnalysis(),
    "LogisticRegression": LogisticRegression(max_iter=1000),
}
SIZE, DIM, CLASSES = 50_000, 128, 20


@dataclass(frozen=True)
class Row:
    """One model on one data set at one share of wrong training labels."""

    data: str
    noise: float
    model: str
    accuracy: float
    spread: float  # standard error over the splits
    ece: float | None  # against test labels as noisy as those trained on; None without probabilities
    clean_ece: float | None  # against clean test labels


@dataclass(frozen=True)
class Speed:
    """Seconds on the large made-up set."""

    model: str
    fit: float
    predict: float
    accuracy: float


def with_noise(y: Any, share: float, seed: int) -> Any:
    generator = np.random.default_rng(seed)
    wrong = generator.random(len(y)) < share
    classes = int(y.max()) + 1
    return np.where(wrong, (y + generator.integers(1, classes, len(y))) % classes, y)


def compare(repeats: int) -> list[Row]:
    rows = []
    for name, load in DATA.items():
        x, y = load(return_X_y=True)
        splits = list(RepeatedStratifiedKFold(n_splits=5, n_repeats=repeats, random_state=0).split(x, y))
        for share in NOISE:
            for title, model in MODELS.items():
                hits, errors = [], []
                for number, (train, test) in enumerate(splits):
                    pipe = make_pipeline(StandardScaler(), clone(model))
                    pipe.fit(x[train], with_noise(y[train], share, number))
                    hits.append(pipe.score(x[test], y[test]))
                    if has_probabilities(title):
                        noisy = with_noise(y[test], share, number + 1000)
                        errors.append((pipe.predict_proba(x[test]), noisy, y[test]))
                error = clean = None
                if errors:
                    chances, noisy, truth = (np.concatenate(part) for part in zip(*errors, strict=True))
                    error = expected_calibration_error(chances, noisy)
                    clean = expected_calibration_error(chances, truth)
                spread = float(np.std(hits, ddof=1) / np.sqrt(len(hits)))
                rows.append(Row(name, share, title, float(np.mean(hits)), spread, error, clean))
    return rows


def has_probabilities(title: str) -> bool:
    return title not in ("RidgeClassifier", "NearestCentroid")


def best_of(times: int, function: Callable[[], object]) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def speed() -> list[Speed]:
    generator = np.random.default_rng(0)
    y = np.arange(SIZE) % CLASSES
    x = 0.35 * generator.normal(size=(CLASSES, DIM))[y] + generator.normal(size=(SIZE, DIM))
    new, truth = 0.0 + x[: SIZE // 10], y[: SIZE // 10]
    x, y = x[SIZE // 10 :], y[SIZE // 10 :]
    models = {title: model for title, model in MODELS.items() if "kernel" not in title}
    models["unhinged, without calibration"] = UnhingedClassifier(calibrate=False)
    rows = []
    for title, model in models.items():
        fitted = clone(model)
        times = 2 if title == "LogisticRegression" else 5
        taken = best_of(times, lambda fitted=fitted: fitted.fit(x, y))
        asked = best_of(5, lambda fitted=fitted: fitted.predict(new))
        rows.append(Speed(title, taken, asked, float(fitted.score(new, truth))))
    return sorted(rows, key=lambda row: row.fit)


def print_tables(rows: list[Row], speeds: list[Speed]) -> None:
    print(
        f"unhinge {unhinge.__version__}, scikit-learn {version('scikit-learn')}, numpy {np.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}, 1 thread.\n"
    )
    print("### Accuracy on clean test labels, in % (standard error)\n")
    print("| data | wrong training labels | " + " | ".join(MODELS) + " |")
    print("|" + "---|" * (len(MODELS) + 2))
    for name in DATA:
        for share in NOISE:
            mine = {row.model: row for row in rows if row.data == name and row.noise == share}
            cells = (f"{100 * mine[title].accuracy:.1f} ({100 * mine[title].spread:.1f})" for title in MODELS)
            print(f"| {name} | {share:.0%} | " + " | ".join(cells) + " |")
    titles = [title for title in MODELS if has_probabilities(title)]
    print("\n### Calibration error of predict_proba (ECE, 15 bins), in %: noisy test labels (clean test labels)\n")
    print("| data | wrong training labels | " + " | ".join(titles) + " |")
    print("|" + "---|" * (len(titles) + 2))
    for name in DATA:
        for share in NOISE:
            mine = {row.model: row for row in rows if row.data == name and row.noise == share}
            cells = (f"{100 * mine[title].ece:.1f} ({100 * mine[title].clean_ece:.1f})" for title in titles)
            print(f"| {name} | {share:.0%} | " + " | ".join(cells) + " |")
    print(f"\n### Time: n = {SIZE * 9 // 10:,}, p = {DIM}, C = {CLASSES}; predictions for {SIZE // 10:,}\n")
    print("| model | fit | predict | accuracy |")
    print("|---|---|---|---|")
    for one in speeds:
        print(f"| {one.model} | {1e3 * one.fit:.0f} ms | {1e3 * one.predict:.1f} ms | {100 * one.accuracy:.1f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON value instead of tables")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of the 5-fold cross-validation")
    options = parser.parse_args()
    for message in ("Variables are collinear", "self.within_class_std_dev_"):
        warnings.filterwarnings("ignore", message=message)
    rows, speeds = compare(options.repeats), speed()
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "speed": [asdict(one) for one in speeds]}, indent=2))
    else:
        print_tables(rows, speeds)


if __name__ == "__main__":
    main()
