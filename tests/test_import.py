"""Importing the package is light."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import unhinge

SOURCE = str(Path(unhinge.__file__).parents[1])
USE = "import unhinge; unhinge.LayerPeeled"  # the first name that is asked for brings torch
SLOW = ("matplotlib", "sklearn", "scipy", "pandas", "PIL", "lightning", "lightning_fabric", "pytorch_lightning")
SLOW += ("ray", "dash", "plotly", "flask", "faiss", "typer", "rich", "joblib", "safetensors", "tensorboard")


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """`code` in an interpreter of its own that finds this package."""
    start = f"import sys; sys.path.insert(0, {SOURCE!r}); "
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=True)


@cache
def imported_by(code: str) -> set[str]:
    """Modules that a fresh interpreter holds after `code`."""
    return set(fresh(f"{code}; print(' '.join(sys.modules))").stdout.split())


def test_importing_the_package_imports_nothing_beyond_torch_and_the_standard_library():
    actual = {name.partition(".")[0] for name in imported_by(USE) - imported_by("import torch")}
    extra = actual - set(sys.stdlib_module_names) - {"unhinge"}
    assert extra <= {"numpy"}, extra
    assert not actual & set(SLOW)


def test_importing_the_package_brings_only_the_theory():
    ours = {name for name in imported_by(USE) if name.startswith("unhinge.")}
    assert {name.split(".")[1] for name in ours} <= {"theory", "extras"}
    assert len(ours) < 60  # 37 when this was written


def test_importing_the_package_alone_brings_nothing_of_it_and_not_even_torch():
    actual = imported_by("import unhinge")
    assert {name for name in actual if name.startswith("unhinge")} == {"unhinge"}
    assert "torch" not in actual


def test_parts_import_nothing_heavy_before_it_is_needed():
    """One interpreter for all: each of them brings torch, which takes seconds."""
    parts = ("data", "metrics", "monitor", "ood", "cli")
    heavy = {*SLOW, "timm", "pytorch_ood", "openood"} - {"typer", "rich"}
    steps = [f"import unhinge.{part}; print({part!r}, *({heavy!r} & set(sys.modules)))" for part in parts]
    steps.append("import unhinge.paper.claims.report, unhinge.paper.claims.plots; print('matplotlib' in sys.modules)")
    assert fresh("\n".join(steps)).stdout.split() == [*parts, "False"]


PAPER = ("unhinge.paper", "unhinge.web", "unhinge.prediction")


@pytest.mark.parametrize(
    ("command", "not_loaded"),
    [
        ("train --data digits --epochs 1 --batch 512 --model convnet --out {out}", PAPER),
        ("train --dry-run", PAPER),
        ("list", ("unhinge.paper.claims", "unhinge.web", "unhinge.prediction", "matplotlib", "sklearn")),
        ("verify --list", ("unhinge.paper.figures", "unhinge.paper.studies", "unhinge.training", "matplotlib")),
        ("verify theorem-2-bias", ("unhinge.paper.figures", "unhinge.paper.studies", "unhinge.training", "matplotlib")),
        ("--help", ("torch", "numpy", "unhinge.theory", *PAPER)),
    ],
    ids=lambda given: given.split(" --")[0] if isinstance(given, str) else "",
)
def test_a_command_loads_only_what_it_needs(command, not_loaded, tmp_path):
    arguments = command.format(out=tmp_path / "run").split()
    code = (
        f"sys.argv = ['unhinge', *{arguments!r}]; from unhinge.cli import main; import contextlib, io; "
        "out = contextlib.redirect_stdout(io.StringIO()); out.__enter__()\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "out.__exit__(None, None, None); print(' '.join(sys.modules))"
    )
    actual = set(fresh(code).stdout.split())
    assert "unhinge.cli.app" in actual
    assert not {name for name in actual if any(name == one or name.startswith(one + ".") for one in not_loaded)}


def test_importing_the_package_sets_no_global_flag():
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); import torch; "
        "before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed()); "
        "import unhinge; "
        "after = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed()); "
        "assert before == after, (before, after)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there():
    for name in unhinge.__all__:
        assert hasattr(unhinge, name)
    for name in (
        "LayerPeeled",
        "State",
        "Schedule",
        "constant",
        "cosine",
        "step",
        "exponential",
        "warmup",
        "piecewise",
    ):
        assert name in unhinge.__all__


def test_parts_for_networks_are_importable_from_the_top():
    from unhinge import UnhingedLoss, nn

    assert UnhingedLoss is nn.UnhingedLoss
    assert unhinge.ETFHead is nn.ETFHead


def test_what_dir_shows_is_public_and_there():
    names = dir(unhinge)
    assert set(names) >= {"LayerPeeled", "UnhingedLoss", "theory", "nn", "__version__"}
    assert not [name for name in names if name.startswith("_") and name != "__version__"]
    assert not {"importlib", "annotations", "Any", "TYPE_CHECKING"} & set(names)
    actual = fresh("import unhinge; [getattr(unhinge, name) for name in dir(unhinge)]; print('all there')")
    assert "all there" in actual.stdout
