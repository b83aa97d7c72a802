"""Importing the package is light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import unhinge

SOURCE = str(Path(unhinge.__file__).parents[1])
USE = "import unhinge; unhinge.LayerPeeled"  # the first name that is asked for brings torch
SLOW = ("matplotlib", "sklearn", "scipy", "pandas", "PIL", "lightning", "lightning_fabric", "pytorch_lightning")
SLOW += ("ray", "dash", "plotly", "flask", "faiss", "typer", "rich", "joblib", "safetensors", "tensorboard")


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """`code` in an interpreter of its own that finds this package."""
    start = f"import sys; sys.path.insert(0, {SOURCE!r}); "
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=True)


def imported_by(code: str) -> set[str]:
    """Modules that a fresh interpreter holds after `code`."""
    return set(fresh(f"{code}; print(' '.join(sys.modules))").stdout.split())


def test_importing_the_package_imports_nothing_beyond_torch_and_the_standard_library():
    found = {name.partition(".")[0] for name in imported_by(USE) - imported_by("import torch")}
    extra = found - set(sys.stdlib_module_names) - {"unhinge"}
    assert extra <= {"numpy"}, extra
    assert not found & set(SLOW)


def test_importing_the_package_brings_only_the_theory():
    ours = {name for name in imported_by(USE) if name.startswith("unhinge.")}
    assert {name.split(".")[1] for name in ours} == {"theory"}
    assert len(ours) < 50  # 37 when this was written


def test_importing_the_package_takes_hardly_longer_than_importing_torch():
    """Processor time of whole interpreters, the best of three each: another program on the machine does not count."""

    def cost(code: str) -> float:
        spent = "import resource; print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))"
        return min(float(fresh(f"{code}; {spent}").stdout) for _ in range(3))

    assert cost(USE) < 1.3 * cost("import torch")


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
