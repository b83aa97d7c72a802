"""The page of the command line, from the commands themselves."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import typer.main

from generators.pages import Pages, cell, table
from unhinge.cli import app

__all__ = ["generate"]


def generate(pages: Pages) -> None:
    group: Any = typer.main.get_command(app)
    lines = ["# The command", "", "`unhinge COMMAND --help` shows the same in a terminal.", ""]
    for name, command in group.commands.items():
        if not command.hidden:
            lines += [*_section(name, command), ""]
    pages.write("command.md", "\n".join(lines))


def _section(name: str, command: Any) -> list[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join(["unhinge", name, *(f"[{one.name.upper()} ...]" for one in arguments), "[OPTIONS]"])
    rows = [(f"`{_spelling(one)}`", _plain(one.help or ""), _default(one)) for one in command.params if not one.hidden]
    examples = re.findall(r"\[bold\](.*?)\[/\]", command.epilog or "")
    lines = [f"## `unhinge {name}`", "", *(_plain(part) + "\n" for part in (command.help or "").split("\n\n"))]
    lines += ["```text", usage, "```", ""]
    if examples:
        wrapped = (textwrap.wrap(one, 74, break_long_words=False, break_on_hyphens=False) for one in examples)
        lines += ["```console", *("$ " + " \\\n    ".join(parts) for parts in wrapped), "```", ""]
    return [*lines, table(("argument or option", "what it does", "default"), rows)]


def _spelling(one: Any) -> str:
    return one.name.upper() if one.param_type_name == "argument" else ", ".join([*one.opts, *one.secondary_opts])


def _default(one: Any) -> str:
    if isinstance(one.show_default, str):
        return cell(one.show_default)
    return "" if one.default is None or one.default is False or callable(one.default) else f"`{one.default}`"


def _plain(text: str) -> str:
    """Without rich's markup, and with the commands it names as code."""
    text = re.sub(r"\[/?[a-z ]*\]", "", " ".join(text.split()))
    return "`".join(part if number % 2 else cell(part) for number, part in enumerate(text.split("`")))
