"""Figures end to end: folders, bytes, resuming, errors and the report."""

from __future__ import annotations

import os
import re
import shutil
from html import escape
from pathlib import Path

import pytest

from unhinge.paper.claims import find as find_claim
from unhinge.paper.claims.errata import ERRATA
from unhinge.paper.claims.report import as_sealed_json
from unhinge.paper.figures import run as run_module
from unhinge.paper.figures.curves import read_rows
from unhinge.paper.figures.registry import find, list_experiments
from unhinge.paper.figures.run import FILES, redraw, reproduce
from unhinge.paper.figures.scale import as_scale
from unhinge.paper.report import write_report
from unhinge.results.sealed import SealError

FEW = ["beyond-large-steps", "beyond-minibatch", "unconstrained-decay"]
PAPER_LABELS = {
    "unconstrained-illustration",
    "fig:unconstrained-behaviors",
    "regularized-gamma",
    "regularized-lr",
    "regularized-lambda",
    "regularized-scale",
    "spherical-lr-behaviors",
    "pal-toy",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    reproduce(FEW, "quick", out, jobs=1)
    return out


def test_every_numerical_figure_of_the_paper_is_known_by_its_label():
    labels = {entry.label for entry in list_experiments()}
    assert labels >= PAPER_LABELS
    for label in PAPER_LABELS:
        assert find(label).label == label


def test_panels_are_as_many_as_the_paper_has():
    counts = {entry.label: len(entry.panels) for entry in list_experiments()}
    least = {
        "unconstrained-illustration": 4,
        "fig:unconstrained-behaviors": 3,
        "spherical-lr-behaviors": 6,
        "pal-toy": 4,
    }
    least |= {name: 5 for name in PAPER_LABELS if name.startswith("regularized")}
    assert all(counts[name] >= number for name, number in least.items())


def test_the_norms_of_features_and_prototypes_are_compared_as_in_the_paper(folder):
    rows = [row for row in read_rows(folder / "unconstrained-decay" / "data.csv") if row.panel == "norm_ratio"]
    last = max(row.step for row in rows)
    assert rows[0].value > 2
    assert all(row.value == pytest.approx(1, abs=1e-3) for row in rows if row.step == last)


def test_curves_that_the_paper_does_not_have_stand_in_a_panel_of_their_own():
    entry = find("regularized-scale")
    shown = {(row.panel, row.series) for row in entry.compute(as_scale("quick"), 0).rows}
    printed = {f"s={s}" for s in ("0.01", "0.05", "0.1", "0.5", "1")}
    for panel in entry.panels:
        wanted = {"s=1", "s=4", "s=4, lambda=3 lambda*"} if panel.key == "larger" else printed
        assert {series for name, series in shown if name == panel.key} == wanted


def test_an_unknown_id_lists_the_nearest_ones():
    with pytest.raises(KeyError, match="regularized-gamma"):
        find("regularised-gama")


def test_an_unknown_id_is_said_before_anything_is_written(tmp_path: Path):
    with pytest.raises(KeyError, match="nearest"):
        reproduce(["unconstrained-gamma", "regularized-lambdas"], "quick", tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_an_unknown_scale_names_those_there_are(tmp_path: Path):
    with pytest.raises(ValueError, match="quick, small, paper"):
        reproduce(FEW, "huge", tmp_path, jobs=1)


def test_a_folder_that_cannot_be_written_is_said_before_work_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def never(*_: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr(run_module, "_make_one", never)
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(OSError, match="Nothing was computed"):
        reproduce(FEW, "quick", blocked / "out", jobs=1)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_said_before_work_starts(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="cannot write"):
        reproduce(FEW, "quick", tmp_path, jobs=1)


@pytest.mark.parametrize("name", FEW)
def test_each_figure_leaves_its_files_and_its_statements_hold(folder: Path, name: str):
    assert {file.name for file in (folder / name).iterdir()} == set(FILES)
    kept = next(result for result in run_module.results(folder) if result.id == name)
    assert kept.holds, [check for check in kept.recipe["checks"] if not check["holds"]]
    assert kept.recipe["seed"] == 0
    assert kept.recipe["versions"]["torch"]
    assert "commit" in kept.recipe


def test_simulated_sgd_lies_on_the_exact_curve(folder: Path):
    recipes = {result.id: result.recipe for result in run_module.results(folder)}
    assert recipes["unconstrained-decay"]["largest_deviation"] < 1e-12


def test_the_same_seed_gives_the_same_bytes(folder: Path, tmp_path: Path):
    reproduce(["beyond-large-steps", "beyond-minibatch"], "quick", tmp_path, jobs=1)
    for name in ("beyond-large-steps", "beyond-minibatch"):
        for file in ("data.csv", "summary.csv"):
            assert (tmp_path / name / file).read_bytes() == (folder / name / file).read_bytes()


def test_another_seed_gives_other_numbers(folder: Path, tmp_path: Path):
    reproduce(["beyond-large-steps"], "quick", tmp_path, seed=1, jobs=1)
    here, there = (place / "beyond-large-steps" / "data.csv" for place in (tmp_path, folder))
    assert here.read_bytes() != there.read_bytes()


def test_a_second_run_makes_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reproduce(["beyond-large-steps"], "quick", tmp_path, jobs=1)
    stamp = (tmp_path / "beyond-large-steps" / "data.csv").stat().st_mtime_ns
    (tmp_path / ".beyond-minibatch.partial").mkdir()  # as an interrupted run leaves it
    seen: list[tuple[str, bool]] = []
    reproduce(
        ["beyond-large-steps", "beyond-minibatch"],
        "quick",
        tmp_path,
        progress=lambda done, total, result: seen.append((result.id, result.reused)),
        jobs=1,
    )
    assert seen == [("beyond-large-steps", True), ("beyond-minibatch", False)]
    assert (tmp_path / "beyond-large-steps" / "data.csv").stat().st_mtime_ns == stamp
    assert not (tmp_path / ".beyond-minibatch.partial").exists()


def test_an_incomplete_folder_is_made_again(folder: Path, tmp_path: Path):
    reproduce(["beyond-large-steps"], "quick", tmp_path, jobs=1)
    (tmp_path / "beyond-large-steps" / "figure.pdf").unlink()
    (again,) = reproduce(["beyond-large-steps"], "quick", tmp_path, jobs=1)
    assert not again.reused
    assert (tmp_path / "beyond-large-steps" / "figure.pdf").is_file()


def test_a_figure_is_drawn_from_its_table_alone(tmp_path: Path):
    reproduce(["beyond-large-steps"], "quick", tmp_path, jobs=1)
    place = tmp_path / "beyond-large-steps"
    before = (place / "figure.png").read_bytes()
    (place / "figure.png").unlink()
    redraw(place)
    assert (place / "figure.png").read_bytes() == before


def test_the_report_is_one_file_that_asks_for_nothing(folder: Path):
    records = [find_claim(name)[0].run() for name in ("lemma-1-value", "theorem-2-bias", "corollary-2-rate")]
    (folder / "claims.json").write_text(as_sealed_json(records), encoding="utf-8")
    page = write_report(folder).read_text(encoding="utf-8")
    for record in records:
        one = record.claim
        assert f'id="claim-{one.id}"' in page
        assert all(escape(words) in page for words in (one.says, one.right, one.title))
    assert "printed as Theorem 4" in page
    assert "The paper's Figure" in page
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
    sources = re.findall(r'src="([^"]{0,22})', page)
    assert len(sources) == len(FEW)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets <= set(re.findall(r'id="([^"]+)"', page))


def test_a_report_without_results_says_what_to_run(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="unhinge reproduce"):
        write_report(tmp_path)


def test_there_are_forty_errata_in_order():
    assert [entry.number for entry in ERRATA] == list(range(1, 41))
    assert {entry.severity for entry in ERRATA} == {"A", "B", "C"}
    assert all(entry.where and entry.printed and entry.right and entry.evidence for entry in ERRATA)


@pytest.mark.parametrize("content", [b"\xff", b"[]", b"{", b"{}", b"[" * 200_000])
def test_a_damaged_recipe_is_no_result(tmp_path, content):
    from unhinge.paper.figures.run import results

    (tmp_path / "anchored-decay").mkdir()
    (tmp_path / "anchored-decay" / "recipe.json").write_bytes(content)
    assert results(tmp_path) == []


@pytest.mark.parametrize("name", ["recipe.json", "data.csv", "summary.csv"])
def test_a_figure_whose_numbers_were_changed_is_no_result_and_made_again(folder: Path, tmp_path: Path, name: str):
    from unhinge.paper.figures.run import results

    shutil.copytree(folder / FEW[0], tmp_path / FEW[0])
    assert [found.id for found in results(tmp_path)] == [FEW[0]]
    path = tmp_path / FEW[0] / name
    whole = path.read_text()
    place = next(k for k in range(len(whole) // 2, len(whole)) if whole[k] in "123456")
    path.write_text(whole[:place] + str(int(whole[place]) + 1) + whole[place + 1 :])
    assert results(tmp_path) == []
    (again,) = reproduce([FEW[0]], "quick", tmp_path, jobs=1)
    assert not again.reused


def test_a_changed_verdict_is_named_instead_of_reported(tmp_path: Path):
    (tmp_path / "claims.json").write_text(as_sealed_json([find_claim("lemma-1-value")[0].run()]), encoding="utf-8")
    write_report(tmp_path)
    text = (tmp_path / "claims.json").read_text(encoding="utf-8")
    (tmp_path / "claims.json").write_text(text.replace("lemma-1-value", "lemma-1-valuf", 1), encoding="utf-8")
    with pytest.raises(SealError, match=r"claims\.json was changed .*unhinge verify --out"):
        write_report(tmp_path)
