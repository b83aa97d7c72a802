"""`unhinge train` and `unhinge evaluate`: what they print, what they write, the code they leave with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import data_makers as make
from unhinge.cli import app
from unhinge.data.glyphs import font_faces
from unhinge.extras import MissingExtra
from unhinge.training import Recipe
from unhinge.training.checkpoint import load_newest
from unhinge.training.records import read_records

SMALL = ("--epochs", "2", "--width", "4")


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(part) for part in arguments], env={"COLUMNS": "160"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("command") / "run"
    code, stdout, stderr = run("train", *SMALL, "--out", out)
    assert code == 0
    assert stdout == ""
    return out, stderr


def test_training_prints_a_table_of_epochs_and_writes_logs_weights_and_figures(trained):
    out, told = trained
    for word in ("epoch", "loss", "train acc", "test acc", "|h|", "angle", "NC1"):
        assert word in told
    assert "test accuracy 0." in told
    assert "\n\n" not in told  # no line for a bar that is not shown
    names = {path.name for path in out.iterdir()}
    assert names >= {"recipe.json", "data.json", "log.jsonl", "log.csv", "log.md", "curves.png", "curves.pdf"}
    assert names >= {"last.safetensors", "best.safetensors", "times.jsonl"}
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "log.md").read_text().count("\n") == 4


def test_the_same_command_again_returns_the_finished_run(trained):
    out, _ = trained
    before = (out / "log.jsonl").read_bytes()
    code, stdout, _ = run("train", *SMALL, "--out", out, "--json")
    assert code == 0
    assert (out / "log.jsonl").read_bytes() == before
    actual = json.loads(stdout)
    assert Recipe.of(actual["recipe"]) == Recipe(epochs=2, width=4, threads=torch.get_num_threads())
    assert actual["stopped"] is None
    assert len(actual["records"]) == 2


def test_tensorboard_gets_each_epoch_once_where_it_is_installed(trained):
    pytest.importorskip("tensorboard", reason="TensorBoard is optional")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out, _ = trained
    board = EventAccumulator(str(out / "tensorboard"))
    board.Reload()
    assert "train_loss" in board.Tags()["scalars"]
    assert [event.step for event in board.Scalars("train_loss")] == [1, 2]


@pytest.mark.filterwarnings("ignore::unhinge.data.DataWarning")
def test_evaluation_prints_and_writes_calibration_and_the_unknown(trained, tmp_path):
    out, _ = trained
    make.idx_set(tmp_path / "MNIST" / "raw")
    code, stdout, stderr = run("evaluate", out, "--ood", "mnist", "--data-root", tmp_path)
    assert code == 0, stderr
    for word in ("accuracy", "many-shot", "(ECE)", "AUROC", "FPR95"):
        assert word in stdout
    scores = ("softmax", "energy", "norm", "mahalanobis", "neco", "nci", "fdbd", "vim")
    shown = [line.strip("│ ").split() for line in stdout.splitlines() if "mnist" in line]
    assert sorted(cells[0] for cells in shown) == sorted(scores)  # one line a score, each with its number
    assert all(0 <= float(cells[cells.index("mnist") + 2]) <= 100 for cells in shown)
    assert (out / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    code, stdout, _ = run("evaluate", out, "--weights", "best", "--json")
    assert code == 0
    assert json.loads(stdout)["weights"] == "best"


def test_a_dry_run_prints_the_recipe_and_its_cost_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = run("train", "--recipe", "cifar10-lt10/pal+radius", "--dry-run", "--json")
    assert code == 0
    actual = json.loads(stdout)
    assert actual["recipe"]["imbalance"] == "exp:10"
    plan = actual["plan"]
    assert plan["steps"] == 25 * -(-plan["train_images"] // 64)
    assert plan["parameters"] > 0
    assert plan["seconds"] > 0
    # three convolutions of an 8 x 8 image at widths 16, 32, 64, and a head: two operations a multiplication
    wanted = 2 * 9 * (64 * 16 + 16 * 16 * 32 + 4 * 32 * 64) + 2 * 64 * 10
    assert wanted == pytest.approx(plan["flops_per_image"], rel=0.1)
    assert plan["flops"] == pytest.approx(3 * plan["flops_per_image"] * plan["train_images"] * 25)
    code, stdout, _ = run("train", *SMALL, "--dry-run")
    assert code == 0
    assert "parameters" in stdout
    assert "on this device" in stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("word", "power"), [("sqrt", 0.5), ("balanced", 1.0), ("0.25", 0.25)])
def test_class_weights_go_by_the_names_they_have_everywhere(word, power):
    code, stdout, _ = run("train", "--class-weight", word, "--dry-run", "--json")
    assert code == 0
    assert json.loads(stdout)["recipe"]["class_weight"] == power


def test_a_dry_run_needs_no_data(tmp_path):
    wanted = (
        "train",
        "--data",
        "cifar10",
        "--model",
        "resnet8",
        "--epochs",
        "2",
        "--batch",
        "100",
        "--data-root",
        tmp_path,
    )
    code, stdout, stderr = run(*wanted, "--imbalance", "exp:100", "--dry-run", "--json")
    assert code == 0
    plan = json.loads(stdout)["plan"]
    assert not plan["data_found"]
    assert plan["train_images"] == 12_406  # the usual size of CIFAR-10 at 100 : 1
    code, stdout, stderr = run(*wanted, "--dry-run")
    assert code == 0
    assert "50,000 images, 1,000 steps" in stdout
    assert "unhinge data cifar10" in stderr
    code, _, stderr = run("train", "--data", "imagenet100", "--data-root", tmp_path, "--dry-run")
    assert code == 2
    assert "ImageNet" in stderr


def test_a_run_that_blows_up_leaves_with_1_and_all_its_records(tmp_path):
    code, stdout, stderr = run(
        "train", "--loss", "unhinged", "--width", "4", "--lr", "1e12", "--epochs", "3", "--out", tmp_path, "--json"
    )
    assert code == 1
    assert "not finite" in stderr
    assert "fix the prototypes" in stderr
    records = json.loads(stdout)["records"]
    assert records[-1]["stopped"]
    assert read_records(tmp_path) == records
    assert (tmp_path / "curves.png").is_file()


def test_a_run_that_diverges_with_a_finite_loss_says_so_and_leaves_with_1():
    from types import SimpleNamespace

    from unhinge.cli.train import _diverged

    record = {"train_loss": -5e10, "train_accuracy": 0.1, "feature_norm": 3e5}
    assert "which is guessing" in _diverged(SimpleNamespace(last=record))
    assert _diverged(SimpleNamespace(last=record | {"train_accuracy": 0.9})) is None
    assert _diverged(SimpleNamespace(last=record | {"train_loss": -3.0})) is None


def test_the_head_that_makes_no_logits_in_training_diverges_by_its_test_accuracy(tmp_path):
    loud = ("--head", "many", "--loss", "unhinged", "--head-rate", "1e3", "--momentum", "0")
    code, _, stderr = run("train", *loud, "--epochs", "1", "--width", "4", "--out", tmp_path)
    assert code == 1
    assert "the test accuracy" in stderr
    assert "which is guessing" in stderr
    assert "Lower --head-rate" in stderr


def test_an_evaluation_names_each_quantity_once_and_angles_in_degrees(trained):
    out, _ = trained
    code, stdout, stderr = run("evaluate", out, "--ood", "digits", "--prior", "counts")
    assert code == 0, stderr
    assert stdout.count("accuracy, adjusted with strength 1 ") == 1
    assert "accuracy, strength 1, many-shot classes" in stdout
    names = [line.strip("│ ").split("│")[0].strip() for line in stdout.splitlines() if line.startswith("│")]
    numbers = [name for name in names if name and "digits" not in name]
    assert len([name for name in numbers if "angle between" in name]) == 1
    assert any("°" in line for line in stdout.splitlines() if "smallest angle" in line)
    assert "weight_angle_min" not in stdout
    assert "is what this network was trained on" in " ".join(stdout.split())


def test_another_loss_that_blows_up_is_not_given_the_advice_for_the_raw_one(tmp_path):
    code, _, stderr = run("train", "--loss", "mse", "--width", "4", "--lr", "1e20", "--epochs", "3", "--out", tmp_path)
    assert code == 1
    assert "fix the prototypes" not in stderr
    assert "Lower --lr" in stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--loss", "crossentropy"], "loss must be one of ce, unhinged"),
        (["--head", "etf"], "--head must be one of linear, pal"),
        (["--epochs", "0"], "epochs must be a whole number of at least 1"),
        (["--lr", "nan"], "lr must be a number"),
        (["--class-weight", "heavy"], "a number such as 0.5, or sqrt or balanced"),
        (["--radius", "5"], "give --feature-penalty"),
        (["--data", "cifar"], "did you mean cifar10"),
        (["--data", "folder:/nowhere"], "/nowhere"),
        (["--model", "resnet19"], "did you mean resnet18"),
        (["--head", "pal", "--loss", "unhinged", "--width", "1"], "head pal on 4 features"),
        (["--shrink", "3"], "factor to shrink by must divide"),
        (["--imbalance", "exp:100000"], "without images"),
        (["--recipe", "cifar10/pall"], "The nearest: pal"),
        (["--recipe", "missing.json"], "cannot read the recipe missing.json"),
        (["--recipe", "cifar10/pal", "--scale", "tiny"], "quick, small, paper"),
        (["--scale", "small"], "--scale is for a recipe by its name"),
        (["--gamma", "0.3"], "--gamma is for losses unhinged and adjusted, but the loss is ce"),
        (["--head-rate", "3"], "--head-rate is for the head many, but the head is linear"),
        (["--head", "fnpal", "--loss", "unhinged", "--radius", "5"], "the features are normalized: leave it out"),
        (["--seed", "-1"], "seed must be a whole number"),
        (["--threads", "0"], "threads must be a whole number of at least 1"),
        (["--largest", "100000"], "enough for 1 to"),
        (["--largest", "0"], "largest must be a whole number of at least 1"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_a_wrong_argument_leaves_with_2_and_the_reason(tmp_path, monkeypatch, arguments, told, dry):
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = run("train", *arguments, *(["--dry-run"] if dry else []))
    assert code == 2
    assert stdout == ""
    assert told in " ".join(stderr.split())
    assert "Traceback" not in stderr


def test_missing_data_leave_with_2_and_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = run("train", "--data", "cifar10", "--data-root", "/nowhere")
    assert (code, stdout) == (2, "")
    assert "name the folder with --data-root" in " ".join(stderr.split())


@pytest.mark.parametrize("content", ["", "{", '{"epoch": 3}', '{"lr": []}', "[1]"])
def test_a_wrong_recipe_file_leaves_with_2(tmp_path, content):
    (tmp_path / "recipe.json").write_text(content)
    code, _, stderr = run("train", "--recipe", tmp_path / "recipe.json", "--out", tmp_path / "run")
    assert code == 2
    assert "cannot read the recipe" in stderr
    assert "recipe.json" in stderr


def test_a_recipe_file_is_followed_and_options_change_it(tmp_path):
    (tmp_path / "mine.json").write_text(Recipe(epochs=5, width=4, lr=0.01).to_json())
    code, stdout, _ = run(
        "train", "--recipe", tmp_path / "mine.json", "--epochs", "1", "--out", tmp_path / "a", "--json"
    )
    assert code == 0
    assert Recipe.of(json.loads(stdout)["recipe"]) == Recipe(epochs=1, width=4, lr=0.01)


def test_a_folder_with_another_run_leaves_with_2(trained):
    out, _ = trained
    code, _, stderr = run("train", *SMALL, "--lr", "0.5", "--out", out)
    assert code == 2
    assert "holds another run; they differ in lr" in " ".join(stderr.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["nowhere"], "no weights at all"), (["nowhere", "--weights", "first"], "--weights must be last or best")],
)
def test_what_cannot_be_evaluated_leaves_with_2(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    code, _, stderr = run("evaluate", *arguments)
    assert code == 2
    assert told in " ".join(stderr.split())


def test_damaged_weights_leave_with_2_and_are_named(tmp_path):
    (tmp_path / "last.safetensors").write_bytes(b"damaged")
    code, _, stderr = run("evaluate", tmp_path)
    assert code == 2
    assert "last.safetensors is damaged" in " ".join(stderr.split())


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_help_has_an_example(command):
    code, stdout, _ = run(command, "--help")
    assert code == 0
    assert f"unhinge {command}" in stdout
    assert "Examples" in stdout


def test_a_run_that_is_asked_to_end_saves_says_so_and_leaves_with_143(tmp_path):
    command = [sys.executable, "-m", "unhinge", "train", "--width", "4", "--epochs", "100000", "--out", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob("checkpoint-*")):  # it trains
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        _, stderr = process.communicate()
    assert process.returncode == 143
    assert "saved after step" in stderr
    assert "Traceback" not in stderr
    assert load_newest(tmp_path)[1] == []


def test_fonts_of_ones_own_stand_in_the_recipe_with_their_checksums(tmp_path):
    faces = font_faces()[:4]
    for face in faces:
        shutil.copy(face.path, tmp_path)
    out = tmp_path / "run"
    few = ("--data", "glyphs", "--fonts", tmp_path, "--characters", "41-5A", "--model", "glyphnet", *SMALL)
    code, _, _ = run("train", *few, "--out", out)
    assert code == 0
    told = json.loads((out / "recipe.json").read_text())["fonts"]
    assert [font.split(" ")[1:] for font in told] == [
        ["train" if k < 3 else "test", f"sha256:{face.files[0].sha256}"] for k, face in enumerate(faces)
    ]
    assert json.loads((out / "data.json").read_text())["fonts"] == [str(face) for face in font_faces([tmp_path])]
    assert run("evaluate", out)[0] == 0
    shutil.copy(font_faces()[5].path, tmp_path / faces[0].path.name)
    code, _, stderr = run("evaluate", out)
    assert code == 2
    assert "not the font file it was" in stderr
    assert run("train", "--data", "glyphs", "--fonts", tmp_path / "nowhere")[0] == 2


def test_training_without_its_extra_names_it_before_the_first_epoch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtra, match=r'training needs safetensors.*"unhinge\[train\]"'):
        run("train", *SMALL, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_blows_up_in_its_last_step_leaves_with_1(tmp_path):
    """After it no loss is computed that could tell."""
    options = ("--epochs", "1", "--largest", "10", "--width", "4", "--lr", "1e30")
    code, stdout, stderr = run("train", *options, "--out", tmp_path, "--json")
    assert code == 1
    assert "answers is not finite" in stderr
    assert "answers is not finite" in json.loads(stdout)["records"][-1]["stopped"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--ood", "noise", "--prior", "counts"), "--prior is for one run"),
        (("--ood", " , "), "--ood needs names"),
        (("--ood", "noise", "--weights", "best"), r"no best\.safetensors"),
    ],
)
def test_what_a_table_of_several_runs_cannot_show_is_refused(tmp_path, trained, options, why):
    out, _ = trained
    shutil.copytree(out, tmp_path / "other")
    (tmp_path / "other" / "best.safetensors").unlink()
    code, _, stderr = run("evaluate", out, tmp_path / "other", *options)
    assert code == 2
    assert re.search(why, " ".join(stderr.split()))


def test_a_table_of_several_runs_measures_the_weights_it_was_asked_for(tmp_path, trained):
    folders = []
    for seed in (0, 1):
        folders.append(tmp_path / str(seed))
        assert run("train", *SMALL, "--seed", seed, "--out", folders[-1])[0] == 0
    shutil.copy(folders[1] / "last.safetensors", folders[0] / "best.safetensors")
    code, before, _ = run("evaluate", *folders, "--ood", "noise", "--json")
    assert code == 0
    assert run("evaluate", folders[0], "--ood", "noise", "--weights", "best")[0] == 0
    assert run("evaluate", *folders, "--ood", "noise", "--json")[1] == before


def test_runs_that_differ_in_a_setting_are_told_apart_by_it(tmp_path):
    folders = []
    for batch in (64, 128):
        folders.append(tmp_path / str(batch))
        assert run("train", *SMALL, "--batch", batch, "--out", folders[-1])[0] == 0
    code, stdout, stderr = run("evaluate", *folders, "--ood", "noise", "--json")
    assert code == 0, stderr
    assert {row["method"] for row in json.loads(stdout)} == {f"ce, linear head, batch {n}" for n in (64, 128)}


def test_one_class_is_refused_before_the_first_epoch(tmp_path):
    for part in ("train", "test"):
        make.image(tmp_path / part / "a" / "0.png", make.images(8, 8, 3))
    code, _, stderr = run("train", "--data", f"folder:{tmp_path}", *SMALL, "--out", tmp_path / "out")
    assert code == 2
    assert "has one class, 'a'" in " ".join(stderr.split())


def test_a_folder_of_images_of_several_sizes_is_trained_on_at_the_size_asked_for(tmp_path):
    for part in ("train", "test"):
        for label, name in enumerate("ab"):
            for number in range(4):
                side = 8 + number
                make.image(tmp_path / part / name / f"{number}.png", make.images(side, side, 3, seed=label))
    data = ("--data", f"folder:{tmp_path}", "--model", "convnet", "--batch", "4", *SMALL)
    code, _, stderr = run("train", *data, "--out", tmp_path / "out")
    assert code == 2
    assert "Pass --image-size to bring all to one size" in " ".join(stderr.split())
    assert run("train", *data, "--image-size", "8", "--out", tmp_path / "out")[0] == 0
    code, _, stderr = run("evaluate", tmp_path / "out")
    assert code == 0, stderr


def test_a_run_on_images_of_ones_own_meets_unknown_ones_from_another_folder(tmp_path, monkeypatch):
    """--data-root is where the unknown set lies; the images of the run stay where they were."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        for label, name in enumerate("ab"):
            for number in range(4):
                make.image(Path("mine") / part / name / f"{number}.png", make.images(8, 8, 3, seed=label))
    for number in range(3):
        make.image(Path("other root") / "unknown" / "c" / f"{number}.png", make.images(9, 9, 3, seed=7))
        make.image(Path("other root") / "unknown" / "test" / "c" / f"{number}.png", make.images(9, 9, 3, seed=7))
    code, _, stderr = run("train", "--data", "folder:mine", "--batch", "4", *SMALL, "--out", "run")
    assert code == 0, stderr
    assert "8 images to train on, 4 of each of 2 classes; 8 images to test on" in stderr
    code, _, stderr = run("evaluate", "run", "--ood", "folder:unknown", "--data-root", "other root")
    assert code == 0, stderr


def test_decisions_are_adjusted_only_where_classes_differ_in_size(tmp_path):
    for name, imbalance in (("even", ()), ("tail", ("--imbalance", "exp:10"))):
        assert run("train", *SMALL, *imbalance, "--out", tmp_path / name)[0] == 0
    assert "adjusted with strength" not in run("evaluate", tmp_path / "even")[1]
    assert "adjusted with strength" in run("evaluate", tmp_path / "tail")[1]


def test_a_posterior_has_the_calibration_error_that_is_shown_first(tmp_path):
    head = ("--loss", "unhinged", "--head", "pal", "--radius", "2", "--no-augment", "--batch", "32")
    assert run("train", "--epochs", "4", "--width", "8", *head, "--out", tmp_path)[0] == 0  # long enough to reach it
    code, stdout, _ = run("evaluate", tmp_path)
    assert code == 0
    numbers = json.loads((tmp_path / "evaluation.json").read_text())
    assert f"{numbers['posterior_ece']:.4f}" in stdout.split("ECE of the softmax, no probability here")[0]


def test_an_unknown_data_set_is_told_the_nearest_name():
    code, _, stderr = run("data", "CIFAR10")
    assert code == 2
    assert "did you mean cifar10?" in " ".join(stderr.split())
