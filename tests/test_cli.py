"""The command: what it prints, and the code it leaves with."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

import data_makers as make
import unhinge
from unhinge.cli import app
from unhinge.paper.catalogue import choose, list_studies
from unhinge.paper.claims import registry
from unhinge.paper.figures import registry as experiments
from unhinge.paper.figures.registry import list_experiments
from unhinge.paper.figures.scale import Scale
from unhinge.paper.numbers import FLOATS

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
    assert "3 claims: 3 hold" in out


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
        "report.html",
        f"{QUICK}.png",
    }


def test_the_list_tests_nothing():
    code, out, _ = run("verify", "--list")
    assert code == 0
    assert len(out.splitlines()) == len(registry.claims())


def test_the_list_has_nothing_to_write(tmp_path: Path):
    code, _, err = run("verify", "--list", "--out", str(tmp_path / "report"))
    assert code == 2
    assert "--list tests nothing" in err
    assert not (tmp_path / "report").exists()


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


def test_a_terminal_without_greek_letters_is_no_reason_to_fail():
    """As on Windows, or where the locale has no UTF-8; the titles of claims hold a theta."""
    done = subprocess.run(
        [sys.executable, "-m", "unhinge", "verify", "--list"],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"theorem-2-theta-sign               Whether the smaller exponent ?" in done.stdout


def test_the_list_shows_every_id_and_the_papers_label():
    code, out, _ = run("list")
    assert code == 0
    for name in ("unconstrained-gamma", "unconstrained-illustration", "beyond-minibatch"):
        assert name in out
    code, out, _ = run("list", "--json")
    records = json.loads(out)
    assert {"id", "label", "claim", "seconds"} <= records[0].keys()
    assert {"id", "label", "claim", "runs"} <= records[-1].keys()
    assert len(records) == len(list_experiments()) + len(list_studies())


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize(
    "arguments",
    [("list",), ("data", "svhn", "mnist"), ("verify", "thm3"), ("train", "--help"), ("reproduce", "--help")],
)
def test_nothing_is_cut_off_on_a_narrow_terminal(arguments: tuple[str, ...], columns: int):
    out = CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)}, terminal_width=columns).stdout
    assert "…" not in out
    if columns > 40 or "--help" not in arguments:  # below 60 the help of Typer keeps a width of 50
        assert max(len(line) for line in out.splitlines()) <= columns
    assert [line for line in out.splitlines() if line[:1] in ("│", "┃") and line[-1] != line[0]] == []


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_table_of_verdicts_cuts_no_name_and_no_number(columns: int):
    from rich.console import Console

    from unhinge.paper.claims import claims
    from unhinge.paper.claims.registry import Record
    from unhinge.paper.claims.report import as_table

    records = [Record(one, printed=(1.25,), ours=(2.5e-16,), undefined="") for one in claims()]
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(as_table(records, columns))
    out = console.export_text()
    assert "…" not in out
    assert all(record.claim.id in out for record in records)
    assert "false as printed" in out


def test_a_figure_is_reproduced_kept_and_reported(tmp_path: Path):
    folder = tmp_path / "figures"
    code, out, _ = run("reproduce", "beyond-large-steps", "--out", str(folder), "--jobs", "1")
    assert code == 0
    assert "report.html" in out
    code, out, _ = run("reproduce", "beyond-large-steps", "--out", str(folder), "--jobs", "1", "--json")
    (record,) = json.loads(out)
    assert code == 0
    assert record["reused"]
    assert record["holds"]
    assert record["checks"]


def test_several_seeds_have_folders_of_their_own(tmp_path: Path):
    code, out, _ = run(
        "reproduce", "beyond-large-steps", "--out", str(tmp_path), "--seeds", "2", "--json", "--jobs", "1"
    )
    assert code == 0
    assert [record["seed"] for record in json.loads(out)] == [0, 1]
    assert (tmp_path / "seed-1" / "beyond-large-steps" / "data.csv").is_file()
    assert "other seeds: 1 of 1" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_statement_that_fails_leaves_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entry = experiments.find("beyond-large-steps")

    def failing(scale: Scale, seed: int) -> experiments.Outcome:
        outcome = entry.compute(scale, seed)
        return replace(outcome, checks=[experiments.Check("two is three", False, "2 against 3")])

    monkeypatch.setitem(experiments._KNOWN, entry.id, replace(entry, compute=failing))
    code, out, _ = run("reproduce", entry.id, "--out", str(tmp_path), "--jobs", "1")
    assert code == 1
    assert "two is three: 2 against 3" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reproduce", "regularised-gama"], "regularized-gamma"),
        (["reproduce", "--scale", "huge"], "quick, small, paper"),
        (["reproduce", "--engine", "slurm"], "local, ray"),
        (["reproduce", "--out", "/dev/null/results"], "Nothing was computed"),
        (["verify", QUICK, "--out", "/dev/null/results"], "Nothing was computed"),
    ],
)
def test_a_wrong_argument_is_said_before_work_starts(arguments: list[str], said: str):
    code, out, err = run(*arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("name", ["Figure 15", "fig15", "Fig. 15", "figure-15", "pal-toy", "anchored-decay"])
def test_a_printed_number_is_a_name(name: str):
    figures, studies = choose([name])
    assert [one.id for one in figures] == ["anchored-decay"]
    assert not studies


def test_printed_numbers_lead_to_studies_and_to_nothing_for_what_has_no_numbers():
    assert [one.id for one in choose(["Figure 3"])[1]] == ["ood-penalty-cifar10", "ood-penalty-cifar100"]
    assert [one.id for one in choose(["table 2"])[1]] == ["long-tailed-cifar10", "long-tailed-cifar100"]
    with pytest.raises(KeyError, match="nothing in it to compute"):
        choose(["Table 1"])
    for name in ("Figure 20", "", "fig:"):
        with pytest.raises(KeyError, match="nothing called"):
            choose([name])


def test_everything_with_a_label_of_the_paper_has_a_printed_number_and_the_other_way_round():
    known = {one.id: one.label for one in (*list_experiments(), *list_studies())}
    assert {id for one in FLOATS for id in one.ids} == {id for id, label in known.items() if label}
    kinds = {kind: [one.name for one in FLOATS if one.name.startswith(kind)] for kind in ("Figure", "Table")}
    assert kinds["Figure"] == [f"Figure {number}" for number in range(1, 20)]
    assert kinds["Table"] == [f"Table {number}" for number in range(1, 7)]


def piped(command: str, *arguments: str) -> int:
    """The exit code of the command whose reader leaves after the first line."""
    child = subprocess.Popen(
        [sys.executable, "-m", "unhinge", command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    said = child.stderr.read().decode()
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    return child.wait()


@pytest.mark.parametrize("command", [("verify", "--list"), ("list",), ("list", "--json"), ("verify", "lemma1")])
def test_a_closed_pipe_is_no_failed_statement(command: tuple[str, ...]):
    assert piped(*command) == 141


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_is_one_line(tmp_path: Path, wrapped: bool):
    """Of a library that stumbles over it while it cleans up, too."""
    full = "OSError(errno.ENOSPC, 'No space left on device')"
    code = (
        "import errno, sys; sys.argv = ['unhinge', 'verify', '--out', 'here']\n"
        "import unhinge.cli.verify as verify\n"
        "def fill(folder):\n"
        f"    try: raise {full}\n"
        f"    finally: {'sys.attribute' if wrapped else 'pass'}\n"
        "verify.writable = fill\n"
        "from unhinge.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "unhinge: No space left on device. Make room and give the same command again.\n"


def test_an_interrupt_ends_with_130(tmp_path: Path):
    code = (
        "import sys; sys.argv = ['unhinge', 'verify', '--out', 'here']\n"
        "import unhinge.cli.verify as verify\n"
        "def interrupted(folder): raise KeyboardInterrupt\n"
        "verify.writable = interrupted\n"
        "from unhinge.cli import main; main()"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True).returncode == 130


def test_ctrl_c_before_the_command_is_imported_ends_with_130():
    code = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'unhinge.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from unhinge.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("failure", ["RecursionError", "ImportError", "SystemExit"])
def test_ctrl_c_ends_with_130_whatever_a_library_makes_of_it(tmp_path: Path, failure: str):
    """An import that is interrupted half-way may fail in its own way later."""
    code = (
        "import os, signal, sys; sys.argv = ['unhinge', 'verify', '--out', 'out']\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        "import unhinge.cli.verify as verify\n"
        "def interrupted(folder):\n"
        "    try: os.kill(os.getpid(), signal.SIGINT)\n"
        f"    except KeyboardInterrupt: raise {failure}(2)\n"
        "verify.writable = interrupted\n"
        "from unhinge.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", ["reproduce", "verify", "train", "predict", "explore", "data", "evaluate"])
def test_help_wraps_where_the_terminal_ends(command: str, columns: int):
    """No line breaks in the middle of a paragraph: each is as long as it can be."""
    result = CliRunner().invoke(app, [command, "--help"], terminal_width=columns, env={"COLUMNS": str(columns)})
    text = re.split("╭|\n(?:Arguments|Options):", result.stdout)[0].splitlines()
    assert max(map(len, text)) <= columns
    for line, after in pairwise(text):
        if line.strip() and after.strip():
            assert len(line.rstrip()) + 1 + len(after.split()[0]) > columns - 3, (line, after)


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", ["list", "reproduce", "verify", "train", "predict", "explore", "data", "evaluate"])
def test_help_shows_examples_a_line_each_and_no_type_after_a_flag(command: str, columns: int):
    result = CliRunner().invoke(app, [command, "--help"], terminal_width=columns, env={"COLUMNS": str(columns)})
    assert "bool" not in result.stdout
    examples = result.stdout[result.stdout.index("Examples:") :].splitlines()[1:]
    assert [line for line in examples if line.count("unhinge ") > 1 or "[" in line] == []
    assert sum(f"unhinge {command}" in line for line in examples) >= 2


def test_on_a_terminal_titles_of_claims_wrap_in_their_column():
    wide = CliRunner().invoke(app, ["verify", "--list"], env={"COLUMNS": "60"}).stdout.splitlines()
    assert any(len(line) > 60 for line in wide)  # in a pipe a claim is a line
    terminal = {"COLUMNS": "60", "FORCE_COLOR": "1"}
    narrow = CliRunner().invoke(app, ["verify", "--list"], env=terminal).stdout.splitlines()
    assert max(map(cell_len, narrow)) <= 60  # an accent takes no column of its own
    assert len(narrow) > len(wide)


def test_the_summary_counts_in_english():
    result = CliRunner().invoke(app, ["verify", "corollary-1", "--markdown"])
    assert result.stdout.strip().endswith("7 claims: 4 hold, 3 corrected")


def test_data_says_what_is_there_and_how_to_get_the_rest(tmp_path: Path):
    result = CliRunner().invoke(app, ["data", "--data-root", str(tmp_path), "--json"])
    assert result.exit_code == 0
    records = {record["name"]: record for record in json.loads(result.stdout)}
    assert records["digits"]["there"]
    assert not records["cifar10"]["there"]
    assert "md5" in records["cifar10"]["words"]
    assert str(tmp_path) in records["cifar10"]["words"]
    assert "--data-root" in records["cifar10"]["words"]
    assert CliRunner().invoke(app, ["data", "cifar10", "--data-root", str(tmp_path)]).exit_code == 1
    assert CliRunner().invoke(app, ["data", "cifar11"]).exit_code == 2


def test_data_looks_at_a_folder_of_images_as_train_would(tmp_path: Path):
    for number, name in enumerate("ababab"):
        make.image(tmp_path / name / f"{number}.png", make.images(8 + number // 5, 8, 3))
    result = CliRunner().invoke(app, ["data", f"folder:{tmp_path}", "--json"])
    assert result.exit_code == 1
    assert "Train with --image-size" in json.loads(result.stdout)[0]["words"]
    assert "missing" not in CliRunner().invoke(app, ["data", f"folder:{tmp_path}"]).stdout  # they are there
    (tmp_path / "b" / "5.png").unlink()
    result = CliRunner().invoke(app, ["data", f"folder:{tmp_path}", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["words"] == "2 test images of 3 x 8 x 8, 2 classes"


def test_collecting_computes_no_figure_and_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from unhinge.paper.figures import run as figures
    from unhinge.paper.studies import run as studies

    code, _, said = run("reproduce", "beyond-large-steps", "collapse", "--collect", "--out", str(tmp_path))
    assert code == 2
    assert "neither figures nor verdicts" in said
    assert not (tmp_path / "beyond-large-steps").exists()
    assert not (tmp_path / "collapse").exists()
    run("reproduce", "beyond-large-steps", "--out", str(tmp_path), "--jobs", "1")
    monkeypatch.setattr(figures, "reproduce", lambda *_, **__: pytest.fail("a figure was computed"))
    monkeypatch.setattr(studies, "sweep", lambda tasks, *_, **__: iter(()) if not tasks else pytest.fail("trained"))
    code, out, said = run("reproduce", "all", "--collect", "--out", str(tmp_path), "--json")
    assert code == 0, said
    assert [one["id"] for one in json.loads(out)] == ["beyond-large-steps"]  # and no empty tables
    assert not (tmp_path / "collapse").exists()
