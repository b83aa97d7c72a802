"""A command writes into the folder it was given and nowhere else: not here, not at home, not beside temporary files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

COMMANDS = {
    "verify": [["verify", "theorem-2-bias", "--out", "OUT"]],
    "reproduce": [["reproduce", "anchored-decay", "--seeds", "2", "--out", "OUT", "--jobs", "2"]],
    "train and evaluate": [
        ["train", "--epochs", "1", "--width", "4", "--out", "OUT"],
        ["evaluate", "OUT", "--ood", "patches"],
    ],
    "predict": [["predict", "FEATURES", "--out", "OUT"]],
    "predict, only printed": [["predict", "FEATURES", "--json"]],
    "list": [["list", "--json"]],
}
NOTHING = ("predict, only printed", "list")


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", COMMANDS)
def test_only_the_folder_named_is_written_to(tmp_path, name):
    here, home, temporary, out = (tmp_path / part for part in ("here", "home", "temporary", "out"))
    for folder in (here, home, temporary):
        folder.mkdir()
    features = tmp_path / "features.npz"
    np.savez(features, features=np.random.default_rng(0).normal(size=(20, 5)), labels=np.arange(20) % 3)
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "SYSTEMROOT") if key in os.environ}
    environment = kept | {"HOME": str(home), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    for command in COMMANDS[name]:
        arguments = [{"OUT": str(out), "FEATURES": str(features)}.get(word, word) for word in command]
        done = subprocess.run(
            [sys.executable, "-m", "unhinge", *arguments],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert tree(here) == set()
    assert tree(home) == set()
    assert tree(temporary) == set()
    assert {path.name for path in tmp_path.iterdir()} <= {"here", "home", "temporary", "out", "features.npz"}
    if name in NOTHING:
        assert not out.exists()
    else:
        assert any(out.iterdir())
        assert not [path for path in tree(out) if ".probe" in path or path.endswith(".partial")]
