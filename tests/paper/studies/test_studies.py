"""Studies of trained networks: which cells, how orderings are judged, and a sweep that is interrupted and goes on."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from unhinge.data import ImageSet
from unhinge.paper.catalogue import choose, list_studies
from unhinge.paper.report import write_report
from unhinge.paper.studies import run as study_run_module
from unhinge.paper.studies import write as study_write_module
from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.follow import Task
from unhinge.paper.studies.paired import mean_and_spread
from unhinge.paper.studies.printed import LONG_TAILED, OOD
from unhinge.paper.studies.run import choose_cells, reproduce_studies
from unhinge.paper.studies.study import Ordering, Study
from unhinge.results.lock import LockError, only_writer
from unhinge.results.sealed import SealError, write_sealed
from unhinge.training import Recipe
from unhinge.training.network import network_of
from unhinge.training.recipes import CHARACTERS, CLASSES, Method

TINY = Recipe(epochs=2, batch=256, width=4, lr=0.05)
CE, PAL, DIGITS = Method("ce"), Method("pal", radius=5.0), Column(data="digits")
UL = PAL.label
# every remaining figure and table of the paper, by its label
LABELS = (
    "classification-results",
    "fig:cifar-10-accuracy",
    "fig:cifar-100-accuracy",
    "fig:imagenet-100-accuracy",
    "tab:lt-cifar",
    "tab:imbalanced-cifar-10",
    "tab:imbalanced-cifar-100",
    "fig:ece-lt-cifar10",
    "fig:ece-lt-cifar100",
    "tab:ood-cifar-unhinged",
    "tab:ood-cifar",
    "fig:cifar10-ood-energy-score",
    "fig:ood-softmax-score",
    "fig:ood-energy-score",
    "fig:ood-feat-norm",
    "ce-fsm-asm-cifar10",
    "ce-fsm-asm-cifar100",
    "imagenet100",
    "fig:collapse-of-unhinged",
)


def tiny(scale: str) -> list[Cell]:
    paper = (("accuracy", 50.0),)
    ours = replace(TINY, loss="unhinged", head="pal", radius=5.0)
    return [Cell(CE, DIGITS, TINY, paper=paper), Cell(PAL, DIGITS, ours)]


STUDY = Study(
    "beyond-gamma",
    None,
    "a tiny study",
    "table",
    tiny,
    ("accuracy", "ece"),
    (Ordering("above", PAL, CE),),
    seeds={"quick": 2, "small": 2, "paper": 2},
)


@pytest.mark.parametrize("label", LABELS)
def test_every_trained_figure_and_table_is_known_by_its_label(label: str):
    figures, studies = choose([label])
    assert not figures
    assert studies


@pytest.mark.parametrize("study", list_studies(), ids=lambda study: study.id)
@pytest.mark.parametrize("scale", ["quick", "small", "paper"])
def test_cells_are_whole_and_orderings_speak_of_rows_there_are(study: Study, scale: str):
    cells = study.cells(scale)
    assert cells
    assert len({(cell.row, cell.column) for cell in cells}) == len(cells)
    rows, columns = {cell.row for cell in cells}, {cell.column for cell in cells}
    for ordering in study.orderings:
        methods = {ordering.better, ordering.worse, *(method for case in ordering.cases for method in case)}
        assert {method.label for method in methods} <= rows
        assert ordering.column is None or ordering.column.label in columns
    if scale == "quick":
        assert {cell.recipe.data for cell in cells} in ({"digits"}, {"glyphs"})  # what needs no download


@pytest.mark.parametrize("scale", ["quick", "small", "paper"])
def test_every_cell_of_every_study_can_be_built(scale: str):
    """Also on a hundred classes, whose simplex needs 99 dimensions: no network here is too narrow for its head."""
    recipes = {replace(cell.recipe, seed=0) for study in list_studies() for cell in study.cells(scale)}
    # What decides whether a network can be built, each once: several hundred ResNets would take minutes.
    shapes = {(r.data, r.shrink, r.model, r.width, r.head, r.without_last_relu): r for r in recipes}
    for recipe in shapes.values():
        classes = CLASSES[recipe.data][1] if recipe.characters is None else CHARACTERS[recipe.characters]
        channels = 1 if recipe.data in ("digits", "glyphs") else 3
        pixels = {"digits": 8, "glyphs": 24, "imagenet100": 224}.get(recipe.data, 32)
        pixels //= recipe.shrink
        blank = torch.zeros(2, channels, pixels, pixels, dtype=torch.uint8)
        names = tuple(map(str, range(classes)))
        images = ImageSet(blank, torch.tensor([0, 1]), names, (0.5,) * channels, (1.0,) * channels)
        network = network_of(recipe, images).eval()
        logits = network(torch.zeros(1, channels, pixels, pixels))
        assert logits.shape == (1, classes), recipe


def test_rows_and_columns_are_rendered_from_fields():
    cell = Cell(Method("pal", penalty=5e-7), Column(penalty=5e-7), TINY)
    assert (cell.row, cell.column) == ("PAL", "λ=5e-7")
    cell = Cell(Method("pal", penalty=5e-7), Column(profile="step", ratio=100, lr=0.03), TINY)
    assert (cell.row, cell.column) == ("PAL, λ=5e-7", "step, ρ=100, lr 0.03")


def test_the_paper_scale_has_the_papers_settings():
    (study,) = choose(["long-tailed-cifar10"])[1]
    for cell in study.cells("paper"):
        recipe = cell.recipe
        assert (recipe.model, recipe.epochs, recipe.batch, recipe.lr) == ("resnet18", 200, 256, 0.1)
        assert (recipe.momentum, recipe.weight_decay) == (0.9, 5e-4)
    by_name = {(cell.row, cell.column): cell for cell in study.cells("paper")}
    assert by_name["PAL, λ=5e-7", "ρ=50"].recipe.feature_penalty == pytest.approx(5e-7)
    assert by_name["PAL, λ=5e-7", "ρ=50"].recipe.imbalance == "exp:50"
    assert dict(by_name["PAL, λ=5e-7", "ρ=50"].paper) == {"accuracy": 79.54}
    assert by_name["CE", "ρ=1"].recipe.imbalance is None


def test_a_smaller_batch_keeps_the_penalty_per_example():
    (study,) = choose(["long-tailed-cifar10"])[1]
    small = {(cell.row, cell.column): cell.recipe for cell in study.cells("small")}
    assert small["CE, λ=5e-5", "ρ=100"].feature_penalty * small["CE", "ρ=100"].batch == pytest.approx(5e-5 * 256)


def test_the_numbers_of_the_paper_have_one_entry_per_cell():
    assert all(len(row) == 5 for table in LONG_TAILED.values() for row in table.values())
    assert all(len(metric) == 3 for table in OOD.values() for row in table.values() for metric in row)


def test_the_spread_of_one_seed_is_unknown():
    assert math.isnan(mean_and_spread([0.5])[1])
    assert all(math.isnan(number) for number in mean_and_spread([]))


def test_a_sweep_runs_what_is_missing_and_never_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, int]] = []
    (first,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=1, tell=lambda d, t, _: seen.append((d, t)))
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert set(first.measured) == {("CE", "digits", 0), (UL, "digits", 0)}

    def never(_: object) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(study_run_module, "follow", never)
    (again,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    assert again.measured == first.measured

    # a second seed finds the first one's runs, and its own fail: said, and nothing lost
    (more,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=2)
    assert set(more.measured) == set(first.measured)
    assert len(more.failures) == 2
    assert "ran again" in more.failures[0]
    recipe = json.loads((tmp_path / "beyond-gamma" / "recipe.json").read_text())
    assert (recipe["runs"], recipe["runs_wanted"]) == (2, 4)

    page = write_report(tmp_path).read_text()
    assert "2 of 4 runs are still to be made" in page
    assert "ran again" in page


def test_further_seeds_that_are_there_stay_in_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They were asked for once, of one row; the next command, which says nothing of seeds, must not leave them out."""

    def follow(task: Task) -> dict[str, object]:
        record = {"recipe": asdict(task.recipe), "stopped": None, "seconds": 0.0, "accuracy": 0.1 * task.recipe.seed}
        write_sealed(task.path, record)
        return record

    monkeypatch.setattr(study_run_module, "follow", follow)
    monkeypatch.setattr(study_write_module, "draw_study", lambda *_: None)
    reproduce_studies([STUDY], "quick", tmp_path, seeds=4, chosen=lambda cell: cell.row == "CE")
    (result,) = reproduce_studies([STUDY], "quick", tmp_path)
    own = STUDY.seeds["quick"]
    assert own == 2
    assert [len(result.of(row, "digits")) for row in ("CE", UL)] == [4, own]
    assert (result.wanted, len(result.failures)) == (6, 0)
    (fewer,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    assert len(fewer.of("CE", "digits")) == 1


def test_seconds_are_no_share_of_anything(tmp_path: Path):
    (result,) = reproduce_studies([replace(STUDY, quantities=("seconds",))], "quick", tmp_path, seeds=1)
    spent = result.measured[CE.label, DIGITS.label, 0]["seconds"]
    with (tmp_path / STUDY.id / "table.csv").open(newline="") as file:
        assert float(next(csv.DictReader(file))["ours"]) == pytest.approx(spent, abs=1e-4)


def test_the_table_has_the_papers_number_and_ours(tmp_path: Path):
    (result,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    with (tmp_path / "beyond-gamma" / "table.csv").open(newline="") as file:
        rows = {(row["row"], row["quantity"]): row for row in csv.DictReader(file)}
    assert float(rows["CE", "accuracy"]["paper"]) == 50.0
    assert float(rows["CE", "accuracy"]["ours"]) == pytest.approx(
        100 * result.values("CE", "digits", "accuracy")[0], abs=1e-4
    )
    assert rows[UL, "accuracy"]["paper"] == ""
    assert {row["scale"] for row in rows.values()} == {"quick"}
    assert (tmp_path / "beyond-gamma" / "figure.png").stat().st_size > 1000
    assert "(50.00)" in (tmp_path / "beyond-gamma" / "table.md").read_text()


def test_studies_that_share_a_network_share_its_run(tmp_path: Path):
    other = replace(STUDY, id="collapse", claim="the same networks")
    told: list[int] = []
    reproduce_studies([STUDY, other], "quick", tmp_path, seeds=1, tell=lambda done, total, _: told.append(total))
    assert told[0] == 2


def test_a_run_measured_on_unknown_images_serves_the_studies_that_do_not_ask(tmp_path: Path):
    unknown = replace(STUDY, id="collapse", cells=lambda scale: [replace(cell, ood="patches") for cell in tiny(scale)])
    told: list[str] = []
    plain, full = reproduce_studies([STUDY, unknown], "quick", tmp_path, seeds=1, tell=lambda *now: told.append(now[2]))
    assert len(told) == 3  # what was found, and two runs for four cells
    assert all(name.endswith("-patches") for name in told[1:])
    assert plain.measured == full.measured
    reproduce_studies([STUDY], "quick", tmp_path, seeds=1, tell=lambda *now: told.append(str(now[:2])))
    assert told[3:] == ["(2, 2)"]


def test_a_run_without_unknown_images_stays_in_its_table_beside_a_study_that_asks_for_them(tmp_path: Path):
    unknown = replace(STUDY, id="collapse", cells=lambda scale: [replace(cell, ood="patches") for cell in tiny(scale)])
    (alone,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    (plain,) = reproduce_studies([STUDY, unknown], "quick", tmp_path, seeds=1, train=False)
    assert plain.study is STUDY  # of the other there is nothing to collect
    assert plain.measured == alone.measured


def test_every_cell_gets_a_first_number_before_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[int] = []

    def follow(task: Task) -> dict[str, object]:
        order.append(task.recipe.seed)
        return {"recipe": asdict(task.recipe), "stopped": "at once", "seconds": 0.0}

    monkeypatch.setattr(study_run_module, "follow", follow)
    monkeypatch.setattr(study_write_module, "draw_study", lambda *_: None)
    reproduce_studies([STUDY], "quick", tmp_path, seeds=2)
    assert order == [0, 0, 1, 1]


def test_the_number_of_processes_does_not_change_a_byte_of_the_tables(tmp_path: Path):
    """In processes that may use both cores: the threads are the recipe's, whoever has how many."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[3]); import torch; torch.set_num_threads(2);"
        "from paper.studies.test_studies import STUDY; from unhinge.paper.studies.run import reproduce_studies;"
        "reproduce_studies([STUDY], 'quick', sys.argv[1], seeds=1, jobs=int(sys.argv[2]))"
    )
    environment = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    for jobs in ("1", "2"):
        command = [sys.executable, "-c", code, str(tmp_path / jobs), jobs, str(Path(__file__).parents[2])]
        subprocess.run(command, check=True, env=environment | {"MPLBACKEND": "Agg"}, timeout=300)
    for name in ("table.csv", "table.md"):
        one, two = (tmp_path / jobs / STUDY.id / name for jobs in ("1", "2"))
        assert one.read_bytes() == two.read_bytes()
    for path in (tmp_path / "1" / "runs").glob("*/last.safetensors"):
        assert path.read_bytes() == (tmp_path / "2" / "runs" / path.parent.name / path.name).read_bytes()
        machine = json.loads((path.parent / "machine.json").read_text())
        assert machine["threads"] == 1


def test_every_run_of_the_folder_stands_in_one_table(tmp_path: Path):
    reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    only = replace(STUDY, id="collapse", cells=lambda scale: [replace(tiny(scale)[0], ood="patches")])
    reproduce_studies([only], "quick", tmp_path, seeds=1)
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3  # both of the first study, though the second asked for another
    assert {row["loss"] for row in rows} == {"ce", "unhinged"}
    assert "lr" not in rows[0]  # the same everywhere
    assert sum(bool(row["energy_auroc"]) for row in rows) == 1
    for row in rows:
        kept = json.loads((tmp_path / "runs" / f"{row['run']}.json").read_text())
        assert float(row["accuracy"]) == kept["accuracy"]


def test_a_changed_result_is_an_error_that_names_it_and_never_a_number(tmp_path: Path):
    reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    path = min((tmp_path / "runs").glob("*.json"))
    accuracy = json.loads(path.read_text())["accuracy"]
    path.write_text(path.read_text().replace(f'"accuracy": {accuracy!r}', '"accuracy": 0.99', 1))
    with pytest.raises(SealError, match=rf"{path.name} was changed .* delete it to have it made again"):
        reproduce_studies([STUDY], "quick", tmp_path, seeds=1, train=False)
    path.unlink()
    (again,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    assert len(again.measured) == 2


@pytest.mark.parametrize("name", ["table.csv", "recipe.json"])
def test_a_changed_table_is_named_instead_of_reported(tmp_path: Path, name: str):
    reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    write_report(tmp_path)
    path = tmp_path / STUDY.id / name
    path.write_text(path.read_text().replace("quick", "small", 1))
    with pytest.raises(SealError, match=rf"{name} was changed .* --collect"):
        write_report(tmp_path)
    reproduce_studies([STUDY], "quick", tmp_path, seeds=1, train=False)
    write_report(tmp_path)


def test_the_command_names_a_changed_result_or_who_holds_the_folder_without_a_trace(tmp_path: Path, capsys):
    from unhinge.cli.app import app

    def told() -> str:
        with pytest.raises(SystemExit) as end:
            app(["reproduce", "beyond-gamma", "--collect", "--out", str(tmp_path)])
        assert end.value.code == 2
        return capsys.readouterr().err

    (tmp_path / "runs").mkdir()
    with only_writer(tmp_path / "runs"):
        assert f"is being written to by process {os.getpid()}" in told()
    (tmp_path / "runs" / "a.json").write_text('{"accuracy": 1, "crc32": "00000000"}')
    assert "a.json was changed after it was written" in told()


def test_a_second_sweep_in_one_folder_is_refused(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    with only_writer(tmp_path / "runs"), pytest.raises(LockError, match="is being written to by"):
        reproduce_studies([STUDY], "quick", tmp_path, seeds=1)


def test_only_the_rows_that_were_asked_for_are_trained(tmp_path: Path):
    """And the table still shows what is there of the others."""
    only = {label: choose_cells([STUDY], "quick", [label], []) for label in (CE.label, UL)}
    (first,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=1, chosen=only[UL])
    assert {row for row, _, _ in first.measured} == {UL}
    (second,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=1, chosen=only[CE.label])
    assert {row for row, _, _ in second.measured} == {CE.label, UL}


def test_a_row_that_is_not_there_lists_those_that_are():
    with pytest.raises(ValueError, match=r"no row 'SGD' in these tables\. There are: CE; PAL, radius 5"):
        choose_cells([STUDY], "quick", ["SGD"], [])


def test_collecting_trains_nothing(tmp_path: Path):
    reproduce_studies([STUDY], "quick", tmp_path, seeds=1)
    (actual,) = reproduce_studies([STUDY], "quick", tmp_path, seeds=3, train=False)
    assert {seed for _, _, seed in actual.measured} == {0}
    recipe = json.loads((tmp_path / "beyond-gamma" / "recipe.json").read_text())
    assert (recipe["runs"], recipe["runs_wanted"]) == (2, 6)
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2


def test_missing_data_is_said_once_and_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from unhinge.data import DataError
    from unhinge.paper.studies import run as module

    monkeypatch.setattr(module, "sweep", lambda *_, **__: pytest.fail("a sweep was started"))
    cells = [Cell(CE, Column(data=data), replace(TINY, data=data)) for data in ("cifar10", "digits", "svhn")]
    study = replace(STUDY, cells=lambda _: cells)
    words = r"1 of 3 runs need cifar10, 1 of 3 runs need svhn, and nothing was trained"
    with pytest.raises(DataError, match=words) as said:
        reproduce_studies([study], "small", tmp_path, seeds=1, data_root=tmp_path / "nowhere")
    assert "test_batch" in str(said.value)
    assert "test_32x32.mat" in str(said.value)
    assert not list((tmp_path / "runs").glob("*.txt"))


def test_the_first_run_that_finds_no_data_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from unhinge.data import DataError
    from unhinge.paper.studies import run as module
    from unhinge.paper.studies.sweep import Failure

    tried = []

    def fails(tasks, *_, **__):
        for task in tasks:
            tried.append(task)
            yield task, Failure(task, "DataError: train_32x32.mat is missing.")

    monkeypatch.setattr(module, "sweep", fails)
    with pytest.raises(DataError, match=r"train_32x32.mat is missing. Nothing further was trained"):
        reproduce_studies([STUDY], "quick", tmp_path, seeds=2)
    assert len(tried) == 1


def test_the_report_takes_what_older_versions_wrote(tmp_path: Path):
    """Without checksums, the words of an ordering, and the column that says which networks fit their images."""
    (tmp_path / "collapse").mkdir()
    ordering = {"statement": "A above B", "claimed_by": "us", "column": "digits", "verdict": "undecided"}
    recipe = dict.fromkeys(("label", "note", "claim", "command"), "") | {
        "id": "collapse",
        "scale": "quick",
        "seeds": [0],
    }
    recipe |= {"runs": 1, "runs_wanted": 1, "hours": 0.1, "failures": [], "orderings": [ordering]}
    (tmp_path / "collapse" / "recipe.json").write_text(json.dumps(recipe))
    table = "row,quantity,column,ours,standard_deviation,paper\nCE,accuracy,digits,97.5,,\n"
    (tmp_path / "collapse" / "table.csv").write_text(table)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "A above B" in page
    assert "97.50" in page
