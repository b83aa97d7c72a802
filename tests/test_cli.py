"""The command: what it prints, and the code it leaves with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unhinge
from unhinge.claims import registry
from unhinge.cli import app

QUICK = "theorem-2-exponential"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})
    return result.exit_code, result.stdout, result.stderr


def test_version():
    assert run("--version")[:2] == (0, f"unhinge {unhinge.__version__}\n")


def test_help_has_an_example():
    code, out, _ = run("verify", "--help")
    assert code == 0
    assert "unhinge verify thm2" in out


def test_one_claim_is_explained():
    code, out, _ = run("verify", QUICK)
    assert code == 0
    for part in ("printed", "right", "tolerance", "corrected", "scipy.linalg.expm", "11"):
        assert part in out


def test_a_group_ends_with_a_table():
    code, out, _ = run("verify", "projection-subspace")
    assert code == 0
    assert "3 claims: 3 holds" in out


def test_json_is_one_list_of_records_on_stdout():
    code, out, _ = run("verify", QUICK, "--json")
    (record,) = json.loads(out)
    assert code == 0
    assert record["id"] == QUICK
    assert record["verdict"] == "corrected"
    assert record["errata"] == [11]
    assert record["our_residual"] < record["tolerance"] < record["printed_residual"]


@pytest.mark.parametrize(("flag", "start"), [("--markdown", "| claim |"), ("--html", '<table class="claims">')])
def test_other_formats_take_all_of_stdout(flag: str, start: str):
    code, out, _ = run("verify", QUICK, flag)
    assert code == 0
    assert out.startswith(start)


def test_the_folder_holds_every_format(tmp_path: Path):
    code, _, _ = run("verify", QUICK, "--out", str(tmp_path / "report"))
    assert code == 0
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "claims.json",
        "claims.csv",
        "claims.md",
        "claims.html",
    }


def test_the_list_tests_nothing():
    code, out, _ = run("verify", "--list")
    assert code == 0
    assert len(out.splitlines()) == len(registry.claims())


def test_an_unknown_claim_names_the_nearest_and_leaves_with_2():
    code, out, err = run("verify", "theorm-2-bias")
    assert code == 2
    assert "theorem-2-bias" in err
    assert "Traceback" not in out + err


def test_two_formats_at_once_are_refused():
    code, _, err = run("verify", QUICK, "--json", "--html")
    assert code == 2
    assert "choose one" in err


def test_our_own_failure_leaves_with_1(monkeypatch: pytest.MonkeyPatch):
    registry.claims()
    broken = replace(registry._CLAIMS[QUICK], ours=registry._CLAIMS[QUICK].printed)
    monkeypatch.setitem(registry._CLAIMS, QUICK, broken)
    code, out, _ = run("verify", QUICK)
    assert code == 1
    assert "OURS FAILS" in out


def test_python_m_unhinge_is_the_command():
    source = str(Path(unhinge.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "unhinge", "--version"], capture_output=True, text=True, check=True, cwd=source
    )
    assert done.stdout == f"unhinge {unhinge.__version__}\n"


def test_the_command_is_light_to_import():
    source = str(Path(unhinge.__file__).parents[1])
    code = (
        "import sys, unhinge.cli; print([name for name in ('scipy', 'matplotlib', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=source)
    assert done.stdout == "[]\n"
