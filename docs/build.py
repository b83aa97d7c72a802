"""Build the site: stage the hand-written pages, generate the others, and run Sphinx with warnings as errors.

    python docs/build.py                # docs/_build/html
    python docs/build.py --fast         # without what has to be computed first: figures and verdicts
    python docs/build.py --errata       # docs/errata.md alone, the page of errata that is read in the repository

The pages are staged in OUT/tree/docs, so that nothing generated lies among the sources. What takes time is kept in
OUT/cache and made again only when the code that decides it has changed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from generators import api, commands, equations, errata, parts, performance, reproduced  # noqa: E402
from generators.pages import Pages, repointed  # noqa: E402

OWN = {"_build", "_static", "generators", "__pycache__"}
FULLER = {"errata.md"}  # in the repository a page without the numbers that the site computes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "_build", help="folder of the site (docs/_build)")
    parser.add_argument("--fast", action="store_true", help="no figures, no verdicts: for tests and for writing")
    parser.add_argument("--errata", action="store_true", help="write docs/errata.md again, and nothing else")
    options = parser.parse_args()
    if options.errata:
        (HERE / "errata.md").write_text(errata.listed(), encoding="utf-8")
        return 0
    out = options.out.resolve()
    began = time.perf_counter()
    cache = None if options.fast else out / "cache"

    stage = out / "tree" / "docs"
    pages = Pages(stage)
    stage_sources(pages)
    api.generate(pages)
    commands.generate(pages)
    equations.generate(pages, ROOT)
    errata.generate(pages, cache)
    parts.generate(pages, ROOT)
    reproduced.generate(pages, ROOT, cache)
    performance.generate(pages, ROOT)
    pages.remove_stale()
    print(f"{len(pages.written)} files staged in {time.perf_counter() - began:.0f} s")

    began = time.perf_counter()
    speed = ["-j", "1", "-t", "fast"] if options.fast else ["-j", "auto"]
    flags = ["-W", "--keep-going", "-q", *speed, "-c", str(HERE), "-d", str(out / "doctrees")]
    done = subprocess.run([sys.executable, "-m", "sphinx", "-b", "html", *flags, str(stage), str(out / "html")])
    print(f"Sphinx took {time.perf_counter() - began:.0f} s")
    if done.returncode == 0:
        print(f"The site: {out / 'html' / 'index.html'}")
    return done.returncode


def stage_sources(pages: Pages) -> None:
    """Every hand-written file; around them links to the rest of the repository, so that `../` still leads there."""
    for folder, names, files in os.walk(HERE):
        names[:] = [name for name in names if name not in OWN]
        for file in files:
            path = Path(folder) / file
            if path.name in FULLER:
                continue
            if path.suffix == ".md":
                text = repointed(path.read_text(encoding="utf-8"))
                pages.write(str(path.relative_to(HERE)), folded(text) if path.parent.name == "theory" else text)
            elif path.suffix not in (".py", ".pyc", ".toml"):
                pages.copy(path, str(path.relative_to(HERE)))
    for entry in ROOT.iterdir():
        link = pages.folder.parent / entry.name
        if not entry.name.startswith(".") and entry.name != "docs" and not link.exists():
            link.symlink_to(entry)


def folded(text: str) -> str:
    """The Python that checks each result of the theory, closed until it is opened: a reader wants the result first."""
    return re.sub(r"^```python\n.*?^```$", r":::{dropdown} Checked in Python\n\g<0>\n:::", text, flags=re.S | re.M)


if __name__ == "__main__":
    sys.exit(main())
