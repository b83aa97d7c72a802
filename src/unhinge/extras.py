"""What an installation without extras lacks, and the line that installs it.

``pip install unhinge`` brings torch and numpy. Everything else belongs to an extra and is imported where it is used:

>>> with needed_for("a figure"):
...     import numpy  # stands for matplotlib, scipy, ...

Where the package is missing, the import ends in a :class:`MissingExtra` that names the package and the extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["MissingExtra", "explained", "needed_for"]

# The module as it is imported, and the smallest extra that brings it. Both sides are compared with pyproject.toml, and
# the left one with every import of the package, by tests/test_release.py.
EXTRA_OF = {
    "scipy": "scipy",
    "matplotlib": "plot",
    "fontTools": "plot",
    "typer": "cli",
    "rich": "cli",
    "sklearn": "sklearn",
    "joblib": "train",
    "PIL": "train",
    "safetensors": "train",
    "lightning_fabric": "train",
    "tensorboard": "train",
    "faiss": "search",
    "ray": "ray",
    "dash": "web",
    "flask": "web",
    "plotly": "web",
    "werkzeug": "web",
    "lightning": "lightning",
    "pyarrow": "arrow",
    "dask": "dask",
    "distributed": "dask",
}


class MissingExtra(ImportError):
    """A package that is not installed, with the line that installs it."""


@contextmanager
def needed_for(purpose: str, extra: str | None = None) -> Iterator[None]:
    """Imports in this block are needed for `purpose`; one that is missing is named together with its extra.

    Arguments:
        purpose: What the user asked for, as the subject of a sentence.
        extra: The extra to name, where one brings all that `purpose` needs; None names that of the missing package.

    Example:
        >>> with needed_for("the explorer"):
        ...     raise ModuleNotFoundError("No module named 'dash'", name="dash")
        Traceback (most recent call last):
        unhinge.extras.MissingExtra: the explorer needs dash, which is not installed:
         pip install "unhinge[web]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        told = explained(error, purpose, extra)
        if told is None:
            raise
        raise told from None


def explained(error: ModuleNotFoundError, purpose: str, extra: str | None = None) -> MissingExtra | None:
    """The same error with the line that installs the package; None where the module belongs to no extra of ours.

    A package that is there but lacks something of its own keeps its error: our extra would not help.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        return None
    line = f'pip install "unhinge[{extra or EXTRA_OF[package]}]"'
    return MissingExtra(f"{purpose} needs {package}, which is not installed: {line}", name=error.name)
