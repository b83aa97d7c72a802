"""The scripts that measure still run, at sizes of no interest; one of them had once been broken for weeks."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from unhinge.training import Recipe
from unhinge.training.checkpoint import write_tensors

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(threads, "1")  # the scripts set them; this puts them back
    found = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, found.name, module)  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


def test_the_sphere_agrees_with_its_rivals(monkeypatch):
    spherical = script("spherical", monkeypatch)
    for name, small in {"DIM": 64, "CLASSES": 8, "SIZE": 40, "STEPS": 40, "LOOPED": 4, "CHECKED": 20}.items():
        monkeypatch.setattr(spherical, name, small)
    rows = spherical.rows()
    errors = [error for row in rows for error in (row.loop_error, row.exact_error) if error is not None]
    assert len(errors) == 8
    assert max(errors) < 1000  # eps
    assert {row.motion for row in rows} == {"plain descent", "rescaled descent", "flow"}


def test_the_kernel_agrees_with_its_rivals(monkeypatch):
    kernel = script("kernel", monkeypatch)
    assert kernel.example_row(40, 4, 3)["error"] < 1e-12
    assert kernel.full_row(12, 3, 3)["error"] < 1e-12
    assert kernel.network_row(64, count=20, dim=4, classes=4, steps=100)["error"] < 0.5


def test_the_dynamics_agree_with_fifty_digits(monkeypatch):
    dynamics = script("dynamics", monkeypatch)
    case = dynamics.Case(dim=8, classes=4, per_class=2)
    for kind in ("flow", "descent"):
        assert float(dynamics.error_in_eps(case.state(50, kind), case.exact(50, kind))) < 64
    assert float(dynamics.error_in_eps(dynamics.sgd(case, 50), case.exact(50, "descent"))) < 1000


def test_parquet_files_are_read_and_summed(monkeypatch, tmp_path, capsys):
    streams = script("streams", monkeypatch)
    monkeypatch.setattr(
        sys, "argv", ["streams.py", "--rows", "1600", "--width", "8", "--repeats", "1", "--folder", str(tmp_path)]
    )
    streams.main()  # it checks that every row was counted
    assert capsys.readouterr().out.count("\n| ") == 4


def test_a_temperature_is_found_again(monkeypatch, tmp_path, capsys):
    """Labels drawn from known probabilities, logits seven times too large: T = 7, and the log loss is their entropy."""
    calibration = script("calibration", monkeypatch)
    exact = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.multinomial(exact.softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    for seed in range(3):
        recipe = Recipe(data="digits", imbalance="step:10", epochs=91, lr=0.1, seed=seed, augment=False)
        record = {"recipe": json.loads(recipe.to_json()), "accuracy": 0.5, "ece": 0.3}
        (tmp_path / f"{recipe.key}.json").write_text(json.dumps(record))
        (tmp_path / recipe.key).mkdir()
        tensors = {"logits": (7 / 2 * exact).half(), "labels": labels}
        write_tensors(tmp_path / recipe.key / "test_logits.safetensors", tensors, {"times": 2.0})
        (tmp_path / recipe.key / "data.json").write_text(json.dumps({"counts": [5, 5, 5, 5]}))
    monkeypatch.setattr(sys, "argv", ["calibration.py", str(tmp_path), "--data", "digits", "--json"])
    calibration.main()
    (rows,) = json.loads(capsys.readouterr().out).values()
    entropy = -(exact.softmax(1) * exact.log_softmax(1)).sum(1).mean().item()
    assert sorted(rows) == ["0", "1", "2"]
    assert rows["0"]["temperature"] == pytest.approx(7, rel=0.03)
    assert rows["0"]["log_loss"] == pytest.approx(entropy, rel=0.01)
    assert rows["0"]["ece"] < 2  # percent
    assert rows["0"]["stated_ece"] == pytest.approx(30)


def test_a_strength_is_found_again(monkeypatch):
    """Logits of the training frequencies, twice too large: strength 2 gives the decision of the balanced world."""
    calibration = script("calibration", monkeypatch)
    exact = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.multinomial(exact.softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    counts = torch.tensor([40, 30, 20, 10])
    record = {"recipe": json.loads(Recipe().to_json())}
    share, strength = calibration.adjusted(record, 2 * (exact + (counts / 100).log()), labels, counts)
    assert strength == pytest.approx(2, abs=0.2)
    assert share == pytest.approx(100 * (exact.argmax(1) == labels).double().mean().item(), abs=0.3)


def test_equal_time_is_the_mean_time_of_the_fastest_method(monkeypatch):
    glyphs = script("glyphs", monkeypatch)
    runs = [
        glyphs.Curve("a task", 100, method, 1.0, 0.1, [seconds], [0.5], 1.0, 1.0)
        for method, seconds in (("quick", 10.0), ("quick", 14.0), ("slow", 40.0))
    ]
    assert "after 12 s" in glyphs.tables(runs)
