"""The shell completes commands, options and values; quickly, and only what the commands accept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from unhinge.cli.completion import VALUES, offered

RUN = "import sys; sys.argv[0] = 'unhinge'; from unhinge.cli import main; main()"


def asked(shell: str, words: str, code: str = RUN) -> list[str]:
    """What the protocol of a shell answers to a line, the last word of which is to be completed."""
    environment = os.environ | {"_UNHINGE_COMPLETE": f"complete_{shell}", "COMP_WORDS": words}
    environment |= {"COMP_CWORD": str(len(words.split(" ")) - 1), "_TYPER_COMPLETE_ARGS": words}
    environment |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert run.stderr == ""
    return run.stdout.split("\n")[:-1]


def test_bash_completes_commands_options_and_values():
    assert asked("bash", "unhinge re") == ["reproduce"]
    assert asked("bash", "unhinge train --los") == ["--loss"]
    assert asked("bash", "unhinge train --loss un") == ["unhinged"]
    assert asked("bash", "unhinge reproduce regularized-g") == ["regularized-gamma"]
    assert asked("bash", "unhinge verify theorem-2-b") == ["theorem-2-bias"]
    assert asked("bash", "unhinge train --recipe cifar10-lt100/pal+s") == ["cifar10-lt100/pal+sqrt"]


def test_where_we_know_no_value_the_shell_offers_files():
    assert asked("bash", "unhinge predict fea") == [""]
    assert asked("zsh", "unhinge predict fea") == ["_files"]


def test_zsh_and_fish_complete_too():
    assert '"unhinged"' in "\n".join(asked("zsh", "unhinge train --loss un"))
    assert asked("fish", "unhinge train --loss un") == ["unhinged"]
    assert asked("fish", "unhinge evaluate --weights ") == ["last", "best"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_it_can_read(shell):
    environment = os.environ | {"_UNHINGE_COMPLETE": f"source_{shell}"}
    run = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, env=environment, check=True)
    assert "_UNHINGE_COMPLETE" in run.stdout
    actual = shutil.which(shell)
    if actual is None:
        return  # the words are there; whether the shell likes them, a machine with it tells
    option = "--no-execute" if shell == "fish" else "-n"
    subprocess.run([actual, option], input=run.stdout, text=True, check=True)


def test_completing_imports_neither_torch_nor_anything_else_that_is_slow():
    names = ["torch", "numpy", "scipy", "sklearn", "matplotlib", "dash", "ray", "lightning_fabric", "faiss"]
    code = f"""
import atexit, sys
atexit.register(lambda: print(*sorted(set(sys.modules) & set({names!r})), file=sys.stdout))
{RUN}"""
    assert asked("bash", "unhinge train --loss un", code) == ["unhinged", ""]
    assert asked("bash", "unhinge train --recipe cifar10-lt100/pal+s", code) == ["cifar10-lt100/pal+sqrt", ""]
    assert asked("bash", "unhinge reproduce beyond-fa", code) == ["beyond-factors", ""]


def test_help_is_as_quick():
    names = ["torch", "numpy", "scipy", "sklearn", "matplotlib"]
    code = f"""
import atexit, sys
atexit.register(lambda: print("held:", *sorted(set(sys.modules) & set({names!r}))))
sys.argv[1:] = ["--help"]
{RUN.partition("; ")[2]}"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "held:"
    assert "--show-completion" in run.stdout


# ---- what is offered is what there is ------------------------------------------------------------------------------


def test_every_figure_study_and_group_is_offered():
    from unhinge.paper.catalogue import GROUPS, list_studies
    from unhinge.paper.figures.registry import list_experiments

    known = [*(one.id for one in list_experiments()), *(one.id for one in list_studies()), *GROUPS]
    assert sorted(offered("reproduce", "id")) == sorted(known)


def test_every_claim_is_offered_and_every_name_offered_is_known():
    from unhinge.paper.claims import claims, find

    names = offered("verify", "claim")
    assert {one.id for one in claims()} <= set(names)
    assert all(find(name) for name in names)


def test_every_recipe_model_loss_and_head_is_offered():
    from typing import get_args

    from unhinge import data
    from unhinge.nn.backbones import MODELS
    from unhinge.training import named_recipes
    from unhinge.training.recipe import Head, Loss

    assert sorted(offered("train", "recipe")) == sorted(named_recipes())
    assert {*offered("train", "model"), "timm:NAME"} == set(MODELS)
    assert offered("train", "loss") == list(get_args(Loss))
    assert offered("train", "head") == list(get_args(Head))
    assert {*offered("evaluate", "ood"), "folder:PATH"} == set(data.NAMES)


def test_each_list_belongs_to_a_parameter_that_exists():
    import typer.main

    from unhinge.cli import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for command, parameter in VALUES:
        assert parameter in {one.name for one in commands[command].params}, (command, parameter)
