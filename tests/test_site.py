"""The documentation site: it builds without a warning, needs nothing from elsewhere, is complete, and its code runs.

How the code of the pages is run. Every hand-written page below docs/ is one test, in a folder of its own:

- blocks of ```python run in order, in one namespace for the page;
- blocks of ```pycon are doctests in the same namespace: what they print is compared (`...` stands for anything);
- blocks of ```console or ```bash whose first command is `unhinge` run through the command line, line by line, and must
  end with exit code 0; with `$ ` before the commands, the other lines are output and are not compared;
- a block below the line `<!-- not executed: REASON -->` is left alone.

The site is built once for all test processes, in the fast mode: without figures and without verdicts, which `make docs`
computes, but with warnings as errors. It is then judged as a reader's browser would, from the files alone.
"""

from __future__ import annotations

import ast
import doctest
import html.parser
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)

# ---- the code of the pages ------------------------------------------------------------------------------------------

FENCE = re.compile(r"^(?P<mark>`{3,})(?:\{code-block\} ?)?(?P<language>python|pycon|console|bash)\s*$")
LEFT_ALONE = re.compile(r"^<!-- not executed: \S.* -->$")


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int  # of its first line of code, from 1
    executed: bool


def blocks(text: str) -> Iterator[Block]:
    """Every block of code in one of the languages that are run."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opened = FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        last = next(i for i in range(number + 1, len(lines)) if lines[i].rstrip() == opened["mark"])
        body = [line for line in lines[number + 1 : last] if not re.match(r"^:[\w-]+:", line)]
        above = next((line for line in reversed(lines[:number]) if line.strip()), "")
        yield Block(opened["language"], "\n".join(body), number + 2, LEFT_ALONE.match(above) is None)
        number = last + 1


def run_python(block: Block, page: str, scope: dict[str, object]) -> None:
    tree = ast.parse("\n" * (block.line - 1) + block.code, page)  # errors then name the line of the page
    exec(compile(tree, page, "exec"), scope)


def run_doctest(block: Block, page: str, scope: dict[str, object]) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(block.code, {}, page, page, block.line - 1)
    test.globs = scope
    said: list[str] = []
    doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)


def commands(code: str) -> list[list[str]]:
    """The commands of a block of shell, each as its words; none if the first is not `unhinge`."""
    lines = code.replace("\\\n", " ").strip().split("\n")
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    words = [found for line in lines if (found := shlex.split(line, comments=True))]
    if not words or words[0][0] != "unhinge":
        return []
    others = [one[0] for one in words if one[0] != "unhinge"]
    assert not others, f"this block begins with unhinge, but then calls {others}: split it, or mark it as not executed."
    return words


def run_commands(block: Block) -> None:
    from typer.testing import CliRunner

    from unhinge.cli import app

    for words in commands(block.code):
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, (
            f"{shlex.join(words)} ended with {done.exit_code}:\n{done.output}\n{done.exception!r}"
        )


@pytest.mark.filterwarnings("ignore:the unhinged loss is below")  # a page lets it run away, to show the exact path
@pytest.mark.parametrize("page", [page.relative_to(DOCS).as_posix() for page in PAGES])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    scope: dict[str, object] = {"__name__": "__main__"}
    for block in blocks((DOCS / page).read_text(encoding="utf-8")):
        if not block.executed:
            continue
        if block.language == "python":
            run_python(block, str(DOCS / page), scope)  # so that tracebacks show its lines
        elif block.language == "pycon":
            run_doctest(block, page, scope)
        else:
            run_commands(block)


def test_no_block_of_code_escapes_the_runner():
    """Indented, in another spelling, or with words after the language, it would not be found."""
    alike = re.compile(r"^\s*(`{3,}|~{3,})\s*(\{code(-block|-cell)?\}\s*)?(py|ipython|sh|shell|console|bash|doctest)")
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").split("\n")
        assert [line for line in lines if alike.match(line) and not FENCE.match(line)] == [], page


def test_the_runner_sees_and_leaves_what_it_should():
    page = "\n".join(
        [
            "```python",
            "a = 1",
            "```",
            "<!-- not executed: it takes minutes -->",
            "",
            "```console",
            "$ unhinge train",
            "```",
            "````{code-block} pycon",
            ":caption: one",
            ">>> a",
            "1",
            "````",
            "```text",
            "b",
            "```",
        ]
    )
    actual = list(blocks(page))
    assert [(one.language, one.executed, one.line) for one in actual] == [
        ("python", True, 2),
        ("console", False, 7),
        ("pycon", True, 10),
    ]
    scope: dict[str, object] = {}
    run_python(actual[0], "page", scope)
    run_doctest(actual[2], "page", scope)
    with pytest.raises(AssertionError, match="Got"):
        run_doctest(Block("pycon", ">>> a\n2", 1, True), "page", scope)
    with pytest.raises(ZeroDivisionError):
        run_python(Block("python", "1 / 0", 1, True), "page", scope)
    with pytest.raises(AssertionError, match="ended with 2"):
        run_commands(Block("console", "$ unhinge verify nonsense", 1, True))
    assert commands("$ unhinge list  # all\nout\n$ unhinge verify \\\n  thm2") == [
        ["unhinge", "list"],
        ["unhinge", "verify", "thm2"],
    ]
    assert commands("make demo\nunhinge list") == []
    with pytest.raises(AssertionError, match="split it"):
        commands("unhinge list\nmake demo")


# ---- the built site -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder of the built pages; whichever process comes first builds it for all."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out, said = shared / "site", shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not said.is_file():
            command = [sys.executable, str(DOCS / "build.py"), "--fast", "--out", str(out)]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
            said.write_text(f"exit code {done.returncode}\n{done.stdout}{done.stderr}", encoding="utf-8")
    if not said.read_text(encoding="utf-8").startswith("exit code 0\n"):
        pytest.fail(f"docs/build.py: {said.read_text(encoding='utf-8')}", pytrace=False)
    return out / "html"


class Links(html.parser.HTMLParser):
    """What a page loads, where it leads, and which places it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value for name, value in attrs if value is not None}
        if tag in ("script", "img", "source", "iframe", "video") and "src" in known:
            self.loads.append(known["src"])
        if tag == "link" and known.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loads.append(known.get("href", ""))
        if tag == "a" and "href" in known:
            self.leads.append(known["href"])
        self.places |= {known[name] for name in ("id", "name") if name in known}


@pytest.fixture(scope="session")
def read(site) -> dict[Path, Links]:
    pages = [page for page in sorted(site.rglob("*.html")) if "_static" not in page.parts]  # the theme keeps a template
    return {page: Links(page.read_text(encoding="utf-8")) for page in pages}


def is_external(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def test_no_page_loads_anything_from_elsewhere(site, read):
    assert len(read) > 50
    for page, links in read.items():
        assert not [one for one in links.loads if is_external(one)], page
    for style in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", style.read_text(encoding="utf-8"))
        assert not [one for one in addresses if is_external(one)], style


def test_what_a_page_loads_and_where_it_leads_is_there(read):
    missing = []
    for page, links in read.items():
        for address in (*links.loads, *links.leads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.exists() or (
                parts.fragment and target in read and unquote(parts.fragment) not in read[target].places
            ):
                missing.append((page.name, address))
    assert not missing


def public_names() -> list[tuple[str, str]]:
    """From the packages themselves, without the generator's help."""
    found = []
    for file in sorted((ROOT / "src" / "unhinge").rglob("__init__.py")):
        parts = file.parent.relative_to(ROOT / "src").parts
        if "cli" in parts or any(part.startswith("_") for part in parts):
            continue
        module = importlib.import_module(".".join(parts))
        names = [name for name in getattr(module, "__all__", ()) if not hasattr(getattr(module, name), "__path__")]
        found += [(module.__name__, name) for name in names if type(getattr(module, name)).__name__ != "module"]
    functional = importlib.import_module("unhinge.nn.functional")
    return found + [("unhinge.nn.functional", name) for name in functional.__all__]


def test_every_public_name_is_on_its_page_and_has_one_entry(site, read):
    names = public_names()
    assert ("unhinge.nn", "UnhingedLoss") in names
    places = {place for links in read.values() for place in links.places}
    for module, name in names:
        page = read[site / "api" / f"{module}.html"]
        targets = [unquote(urlsplit(one).fragment) for one in page.leads]
        entry = [one for one in targets if one.startswith("unhinge") and one.rpartition(".")[2] == name]
        assert entry, f"{module}.{name} is not listed on the page of {module}"
        assert entry[0] in places, f"{entry[0]} has no entry"


def test_every_citation_of_a_formula_leads_to_it(site, read):
    cited = {
        label
        for folder in ("src", "tests")
        for file in (ROOT / folder).rglob("*.py")
        if file != Path(__file__)
        for label in re.findall(r"\[eq:\s+([\w-]+)\]", file.read_text(encoding="utf-8"))
    }
    assert "problem" in cited
    index = {unquote(urlsplit(one).fragment) for one in read[site / "equations.html"].leads}
    places = {place for links in read.values() for place in links.places}
    assert {label for label in cited if f"eq-{label}" not in places} == set()
    assert {label for label in cited if f"eq-{label}" not in index} == set()


def test_every_experiment_and_every_erratum_has_its_place(site, read):
    from unhinge.paper.catalogue import list_studies
    from unhinge.paper.claims import claims
    from unhinge.paper.claims.errata import ERRATA
    from unhinge.paper.figures.registry import list_experiments

    for one in (*list_experiments(), *list_studies()):
        text = (site / "reproduce" / f"{one.id}.html").read_text(encoding="utf-8")
        assert f"unhinge reproduce {one.id}" in re.sub(r"<[^>]*>", "", text)
        assert f"{one.id}.html" in read[site / "reproduce" / "index.html"].leads
    assert {f"erratum-{one.number}" for one in ERRATA} <= read[site / "errata.html"].places
    listed = (site / "claims.html").read_text(encoding="utf-8")
    for claim in claims():
        assert f">{claim.id}<" in listed


def test_the_catalogue_says_of_every_part_when_to_use_it_and_when_not():
    import tomllib

    from unhinge import metrics, monitor, nn, ood

    told = tomllib.loads((DOCS / "parts.toml").read_text(encoding="utf-8"))
    wanted = {name for package in (nn, metrics, monitor, ood) for name in package.__all__} - {"functional"}
    wanted |= {f"UF.{name}" for name in nn.functional.__all__}
    assert wanted - set(told) == set()
    assert all(set(words) == {"use", "avoid"} for words in told.values())


def test_the_landing_page_counts_right(site):
    from unhinge.paper.claims import claims

    assert f"{len(claims())} claims" in (site / "index.html").read_text(encoding="utf-8")
