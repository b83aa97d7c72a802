"""Pages in one file: no script, no font and no image from elsewhere, so that a page can be kept, mailed and printed."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

__all__ = ["page", "picture", "table"]

STYLE = """
:root { color-scheme: light; --ink: #1a1a1a; --ground: #fff; --faint: #444; --line: #ccc; --strong: #888;
  --link: #00558a; --accent: #0072B2; --good: #00664b; --fair: #8a5a00; --bad: #b34700; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e6e6e6; --ground: #15181c; --faint: #b4b9c0; --line: #3a4048; --strong: #7a828c;
    --link: #7cc0ee; --accent: #56b4e9; --good: #4fc79c; --fair: #e0b04c; --bad: #f08a4b; }
  img { background: #fff; border-radius: .4rem; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 62rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; border-bottom: 2px solid var(--accent); }
h3 { font-size: 1.05rem; margin-bottom: .2rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .5rem; border-bottom: 1px solid var(--line); }
th { border-bottom: 2px solid var(--strong); }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; } figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
.small { font-size: .85rem; color: var(--faint); } code { font-size: .9em; overflow-wrap: anywhere; }
a { color: var(--link); }
@page { size: A4; margin: 14mm; }
@media print {
  body { max-width: none; margin: 0; padding: 0; font-size: 9pt; } table { font-size: 7pt; line-height: 1.3; }
  th, td { padding: .12rem .3rem; } thead { display: table-header-group; } tr { break-inside: avoid; }
  h1 { font-size: 16pt; } h2 { font-size: 12pt; margin-top: 1rem; } h3 { font-size: 10pt; }
  h2, h3, h3 + p { break-after: avoid; } .wide { overflow: visible; } nav { display: none; }
  .small { font-size: 7.5pt; }
}
"""


def page(title: str, body: str, style: str = "") -> str:
    """A whole page around `body`, which is HTML; `style` adds rules to those that every page has.

    Example:
        >>> "<title>A &amp; B</title>" in page("A & B", "<p>text</p>")
        True
    """
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body>
<h1>{escape(title)}</h1>
{body}
</body></html>
"""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words, escaped, that scrolls by itself where the page is too narrow.

    Example:
        >>> print(table(("class", "n < 10"), [("0", "yes")]))
        <div class="wide"><table><thead><tr><th>class</th><th>n &lt;
         10</th></tr></thead><tbody>
        <tr><td>0</td><td>yes</td></tr>
        </tbody></table></div>
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def picture(path: Path, alt: str) -> str:
    """A PNG inside the page, with the words for those who cannot see it."""
    code = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{code}"></figure>'
