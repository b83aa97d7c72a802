#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2024.10"]
# ///
"""The same checks in environments of their own: every Python this machine has, the oldest versions, other trainers.

`make test` is the daily command and needs none of this. `nox -l` lists the sessions; `nox -s lean` runs one. torch
comes first and by its pin where there is a wheel for it: a bare torch may be a build of several gigabytes.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False  # run what the machine has
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
OLDEST = ("tests/theory", "tests/nn", "tests/metrics", "tests/streams")
BILL = "dist/unhinge.cdx.json"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def install(session: nox.Session, what: str, *more: str) -> None:
    session.install("-c", "constraints.txt", "torch")
    session.install("-c", "constraints.txt", "-e", what, *more)


@nox.session(python="3.11")
def lint(session: nox.Session) -> None:
    """Style and formatting."""
    session.install("-c", "constraints.txt", "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python="3.11")
def spelling(session: nox.Session) -> None:
    """Misspelled words in code and prose."""
    session.install("-c", "constraints.txt", "codespell")
    session.run("codespell")


@nox.session(python="3.11")
def types(session: nox.Session) -> None:
    """Types, strictly."""
    install(session, ".[dev]")
    session.run("mypy")


@nox.session(python=PYTHONS)
def lean(session: nox.Session) -> None:
    """The core with torch and numpy only, on every Python."""
    session.install("-c", "constraints.txt", "torch", "numpy")
    session.install("--no-deps", ".")
    session.run("python", "tests/lean_program.py")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Every test, on every Python; `nox -s tests-3.13 -- tests/theory` for a part."""
    install(session, ".[dev]")
    session.run("pytest", "-q", "-n", "2", "--dist", "worksteal", *session.posargs, env=ONE_THREAD)


@nox.session(python="3.11", default=False)
@nox.parametrize("torch", ["oldest", "pinned"])
def lowest(session: nox.Session, torch: str) -> None:
    """The core and the extras train and arrow at the oldest versions that pyproject.toml allows, where wheels exist.

    uv chooses them (pip has no such switch): the lowest of what we ask for by name, the newest of the rest. The oldest
    torch comes from the index of its builds without CUDA; where that cannot be reached, "pinned" tests everything else.
    """
    session.install("uv", "pytest", "hypothesis", "mpmath")
    if torch == "pinned":
        session.install("-c", "constraints.txt", "torch")
        pin = Path(session.create_tmp()) / "torch.txt"
        pin.write_text(next(line for line in Path("constraints.txt").read_text().splitlines() if "torch==" in line))
        choice = ("--constraint", str(pin))
    else:
        choice = ("--torch-backend", "cpu")
    wanted = ("--resolution", "lowest-direct", "-e", ".[train,arrow]")
    session.run_install("uv", "pip", "install", *choice, *wanted, external=True)
    session.run("python", "tests/lean_program.py")
    session.run("pytest", "-q", "-x", "-p", "no:dash", *(session.posargs or OLDEST), env=ONE_THREAD)


@nox.session(python="3.11", default=False)
def integrations(session: nox.Session) -> None:
    """Other people's trainers, data sets and clusters; installs gigabytes."""
    install(session, ".[integrations]", "pytest", "hypothesis", "onnx", "onnxruntime", "onnxscript")
    session.run("pytest", "-q", "tests/integrations", "tests/streams", *session.posargs, env=ONE_THREAD)


@nox.session(python="3.11", default=False)
def docs(session: nox.Session) -> None:
    """The documentation site, warnings as errors."""
    install(session, ".[dev]")
    session.run("python", "docs/build.py", *session.posargs, env={"MPLBACKEND": "Agg"})


@nox.session(python="3.11", default=False)
def build(session: nox.Session) -> None:
    """Wheel, sdist, and beside them a bill of materials (CycloneDX) of the versions it is tested with."""
    session.install("-c", "constraints.txt", "build", "cyclonedx-bom")
    session.run("python", "-m", "build", "--outdir", "dist", ".")
    session.run(
        "cyclonedx-py",
        "requirements",
        "constraints.txt",
        "--pyproject",
        "pyproject.toml",
        "--output-reproducible",
        "-o",
        BILL,
    )


if __name__ == "__main__":
    nox.main()
