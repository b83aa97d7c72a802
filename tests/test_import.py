"""Importing the package is light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import unhinge

SOURCE = str(Path(unhinge.__file__).parents[1])
LIST = "import sys, {name}; print(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"


def imported_by(name: str) -> set[str]:
    """Top-level packages that a fresh interpreter holds after importing `name`."""
    code = f"import sys; sys.path.insert(0, {SOURCE!r}); " + LIST.format(name=name)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_imports_nothing_beyond_torch_and_the_standard_library():
    extra = imported_by("unhinge") - imported_by("torch") - set(sys.stdlib_module_names) - {"unhinge"}
    assert extra <= {"numpy"}, extra


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
