"""The present view as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from functools import lru_cache

from unhinge.web.address import State, address
from unhinge.web.controls import written
from unhinge.web.figures import THEMES, figure
from unhinge.web.panels import Answer
from unhinge.web.views import View

__all__ = ["export_page", "plotly_script"]

STYLE = """
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1.2rem; color: {ink}; background: {paper}; }}
h1 {{ font-size: 1.3rem; }} h2 {{ font-size: 1rem; margin: .2rem 0; }}
.grid {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 12px; }}
.graph {{ height: 320px; }} article {{ border: 1px solid {grid}; border-radius: 6px; padding: 6px; min-width: 0; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; }}
table {{ border-collapse: collapse; font-size: 13px; }} td, th {{ padding: 2px 10px 2px 0; text-align: left; }}
"""


@lru_cache(maxsize=1)
def plotly_script() -> str:
    """Plotly's JavaScript, some 4 MB, read from its package once."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    return str(get_plotlyjs())


def export_page(view: View, state: State, answer: Answer, look: str) -> str:
    """Curves that can still be moved and zoomed, the words, the numbers, all parameters, and the Python."""
    figures = {slot.key: figure(answer.panels[slot.key], slot, look, player=True) for slot in view.slots}
    articles = "\n".join(
        f"<article><h2>{html.escape(answer.panels[slot.key].title or slot.title)}</h2>"
        f'<div class="graph" id="graph-{slot.key}"></div><p>{html.escape(slot.help)}</p>'
        f"<details><summary>Python</summary><pre>{html.escape(answer.panels[slot.key].code)}</pre></details></article>"
        for slot in view.slots
    )
    numbers = "".join(
        f"<tr><th>{html.escape(entry.label)}</th><td>{html.escape(entry.value)}</td><td>{html.escape(entry.help)}</td></tr>"
        for entry in answer.numbers
    )
    values = "".join(
        f"<tr><th>{html.escape(control.label)}</th><td>{html.escape(written(state[control.key]) or 'auto')}</td></tr>"
        for control in view.controls
    )
    words = html.escape(" ".join([answer.headline, *answer.sentences]))
    data = json.dumps(figures).replace("</", "<\\/")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>unhinge: {html.escape(view.title)}</title><style>{STYLE.format(**THEMES[look])}</style></head><body>
<h1>unhinge: {html.escape(view.title)}</h1>
<p>{words}</p>
<table>{numbers}</table>
<div class="grid">{articles}</div>
<h2>Parameters</h2>
<table>{values}</table>
<p>The same view again: <code>unhinge explore</code>, then <code>{html.escape(address(state, view.controls))}</code></p>
<script>{plotly_script()}</script>
<script>
const figures = {data};
for (const [key, figure] of Object.entries(figures)) {{
  const place = document.getElementById("graph-" + key);
  Plotly.newPlot(place, figure.data, figure.layout, {{responsive: true, displaylogo: false}})
    .then(() => figure.frames && Plotly.addFrames(place, figure.frames));
}}
</script></body></html>
"""
