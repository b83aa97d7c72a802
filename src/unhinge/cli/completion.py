"""What the shell completes by value: the names one can choose from, known without importing torch.

A completion is asked for at every press of the tab key, and importing torch takes seconds. Recipes and studies are
data that needs no torch; other names stand here a second time, or are read off the source, and a test holds them
against those that the commands know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from inspect import cleandoc
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, NamedTuple, get_args

from typer.core import TyperGroup

__all__ = ["Commands", "offered"]

DATA = (
    "digits",
    "glyphs",
    "cifar10",
    "cifar100",
    "cifar100-coarse",
    "svhn",
    "mnist",
    "kmnist",
    "fashion-mnist",
    "imagenet100",
)
SCALES = ("quick", "small", "paper")
NARROW = 78  # columns below which help is set without boxes
GROUPS = ("lemma1", *(f"thm{number}" for number in range(1, 6)), "cor1", "cor2")


def _registered(folder: str, decorator: str) -> list[str]:
    """The names that the modules of a folder register with a decorator, read off their source."""
    files = sorted((Path(__file__).parents[1] / folder).glob("*.py"))
    pattern = re.compile(rf'^@?{decorator}\(\s*"([\w-]+)"', re.MULTILINE)
    return [name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))]


def _reproduced() -> list[str]:
    from unhinge.paper.studies.registry import STUDIES

    return [*_registered("paper/figures", "experiment"), *STUDIES, "numerical", "trained", "all"]


def _claims() -> list[str]:
    return [*_registered("paper/claims", "claim"), *GROUPS]


def _choices(setting: str) -> tuple[str, ...]:
    """What a setting of a recipe can be, by the name of its type."""
    from unhinge.training import recipe

    return get_args(getattr(recipe, setting))


def _recipes() -> list[str]:
    from unhinge.training.recipes import named_recipes

    return named_recipes()


Names = Callable[[], Iterable[str]]
VALUES: dict[tuple[str, str], Names | tuple[str, ...]] = {
    ("reproduce", "id"): _reproduced,
    ("reproduce", "scale"): SCALES,
    ("reproduce", "engine"): ("local", "ray"),
    ("verify", "claim"): _claims,
    ("train", "recipe"): _recipes,
    ("train", "scale"): SCALES,
    ("train", "data"): DATA,
    ("train", "model"): (
        *("convnet", "glyphnet", "resnet8", "tiny-resnet", "resnet20", "resnet32", "resnet56"),
        *("resnet18", "resnet34", "resnet50"),
    ),
    ("train", "head"): partial(_choices, "Head"),
    ("train", "loss"): partial(_choices, "Loss"),
    ("train", "strategy"): ("auto", "ddp"),
    ("train", "accelerator"): ("auto", "cpu", "cuda", "mps"),
    ("train", "precision"): ("32-true", "bf16-mixed"),
    ("data", "name"): DATA,
    ("evaluate", "ood"): ("patches", *DATA),
    ("evaluate", "weights"): ("last", "best"),
}


def offered(command: str, parameter: str) -> list[str]:
    """The values of an argument or option of a command that are completed.

    Example:
        >>> offered("train", "loss")
        ['ce', 'unhinged', 'adjusted', 'hinge', 'mse', 'ldam', 'taylor_softmax', 'z',
         'spherical_softmax']
    """
    names = VALUES[command, parameter]
    return list(names() if callable(names) else names)


class Item(NamedTuple):
    """A candidate, in the form that the shells' scripts ask for."""

    value: str
    help: str | None = None
    type: str = "plain"


def _complete(command: str, parameter: str, context: object, incomplete: str) -> list[Item]:
    return [Item(name) for name in offered(command, parameter) if name.startswith(incomplete)]


def _without_boxes(command: Any) -> None:
    """Help as plain text: boxes leave too little room on a narrow terminal, and cut the names of options off."""
    command.rich_markup_mode = None
    for part in ("help", "epilog"):
        setattr(command, part, re.sub(r"\[/?[a-z]*\]", "", getattr(command, part) or ""))
    lines = [_continued(line, get_terminal_size().columns - 6) for line in command.epilog.splitlines()]
    command.epilog = "\n".join(["\b", *lines])  # keeps its lines


def _continued(line: str, width: int) -> str:
    """A command over several lines, with a backslash at the end of all but the last, so that it can be copied."""
    indent = " " * (len(line) - len(line.lstrip()))
    parts = wrap(line, width, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(parts)


def _without_type(parameters: list[Any]) -> list[Any]:
    """The parameters; those that take no value say so, where Typer would print `<bool>` after `--json`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Commands(TyperGroup):
    """The commands, with values to complete beside their options; without a value of ours, the shell offers files."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of the program itself."""
        return _without_type(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:  # lines end where the source wraps; the terminal wraps by itself
            command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.help))
        if command is not None and get_terminal_size().columns < NARROW:
            _without_boxes(command)
        for parameter in _without_type(command.get_params(ctx)) if command is not None else ():
            if (cmd_name, parameter.name) in VALUES:
                parameter.shell_complete = partial(_complete, cmd_name, parameter.name)
        return command
