"""One HTML file with live sliders and no Python behind them: the balanced closed forms, in JavaScript.

A teacher can put it on a web site or mail it. It holds the starts it is drawn from, so its numbers are those of
:meth:`~unhinge.theory.LayerPeeled.flow`, and `assets/live.js` computes every curve in the browser.
"""

from __future__ import annotations

import base64
import json
from html import escape
from pathlib import Path

from torch import Tensor

from unhinge.web.address import State
from unhinge.web.controls import written
from unhinge.web.setting import setting

__all__ = ["classes_offered", "live_page"]

ASSETS = Path(__file__).with_name("assets")
OFFERED = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 100)  # numbers of classes on the slider
LARGEST_START = 20_000  # numbers of one start on the slider; the chosen one may be larger
LARGEST_CHOSEN = 200_000  # of the chosen one: 2 MB of text
FIELDS = (
    ("gamma", "γ, weight of the wrong logits"),
    ("feature_decay", "feature decay λ₁"),
    ("weight_decay", "weight decay λ₂"),
    ("lr", "rate η of the prototypes"),
    ("s", "rate of the features over η"),
)
PANELS = (
    ("loss", "Loss", "The mean over the examples, without the decay terms; where it is negative, minus the loss."),
    ("accuracy", "Accuracy", "The share of examples whose largest logit is that of their label."),
    ("norms", "Norms", "Of all features and of all prototypes."),
    ("distance", "Distance to the limit", "| Z/|Z| - its limit |, where Z holds features and prototypes."),
)


def classes_offered(state: State) -> list[int]:
    """The numbers of classes on the slider: those whose starts are small, and the one of the state."""
    per_class, dim, own = state.count("per_class"), state.count("dim"), state.count("classes")
    room = dim + 1 if state.word("start") == "etf" else max(OFFERED)
    small = [c for c in OFFERED if c * (per_class + 1) * dim <= LARGEST_START and c <= room]
    return sorted({*small, own})


def live_page(state: State) -> str:
    """The page for a state of the view of free features; a ValueError says what such a page cannot show.

    Example:
        >>> from unhinge.web.address import default_state
        >>> from unhinge.web.view_free import FREE
        >>> live_page(default_state("free", FREE.controls))[:15]
        '<!DOCTYPE html>'
    """
    _check(state)
    classes = classes_offered(state)
    starts = {}
    for count in classes:
        given = setting(state.replaced(classes=count)).script
        starts[count] = {"features": _packed(given["features"]), "weight": _packed(given["weight"])}
    record = {"classes": classes, "per_class": state.count("per_class"), "dim": state.count("dim"), "starts": starts}
    data = json.dumps(record).replace("</", "<\\/")
    style, script = ((ASSETS / name).read_text(encoding="utf-8") for name in ("live.css", "live.js"))
    fields = "".join(_field(key, words, written(state[key])) for key, words in FIELDS)
    panels = "".join(
        f'<article><h2>{title}</h2><div id="{key}"></div><div class="key" id="{key}-key"></div>'
        f"<p>{escape(help)}</p></article>"
        for key, title, help in PANELS
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>unhinge: the last layer in training</title><style>{style}</style></head><body>
<h1>The last layer of a classifier in training</h1>
<p>Features and prototypes of C classes are trained by gradient flow under the unhinged loss,
mean of (-z<sub>y</sub> + γ Σ z<sub>j</sub> over j ≠ y) + λ₁/2 |H|² + λ₂/2 |W|². Every curve is computed exactly,
in this page: it needs no server and no other file. Each class has {state.count("per_class")} examples of dimension
{state.count("dim")}. A quotient such as 1/9 is a number too.</p>
<form autocomplete="off"><div><label for="classes">classes C <output id="classes-shown"></output></label>
<input type="range" id="classes" min="0" max="{len(classes) - 1}" value="{classes.index(state.count("classes"))}"></div>
{fields}<div class="row"><button type="button" id="critical">Set both decays to the critical one</button></div></form>
<p id="words" role="status"></p><p id="facts"></p>
<div class="grid">{panels}<article><h2>Features (dots) and prototypes (crosses) of three classes</h2>
<div id="picture"></div><div class="row"><button type="button" id="play">▶ Play</button>
<input type="range" id="moment" min="0" max="100" value="0" aria-label="time"><output id="moment-shown"></output></div>
<p>Projected on the plane of their final prototypes.</p></article></div>
<script type="application/json" id="starts">{data}</script>
<script>{script}</script>
</body></html>
"""


def _field(key: str, words: str, value: str) -> str:
    kept = escape(value)
    return (
        f'<div><label for="{key}">{words} <input type="text" id="{key}" value="{kept}" data-kept="{kept}" '
        f'spellcheck="false"></label><input type="range" id="{key}-slider" min="0" max="1000" '
        f'aria-label="{words}, slider"></div>'
    )


def _check(state: State) -> None:
    if state.view != "free":
        raise ValueError("a live page can be made of the view Free & regularized only. Open that view first.")
    if state.word("profile") != "balanced" or state.word("start") == "own":
        raise ValueError("a live page has classes of equal size and a random or ETF start. Choose those first.")
    if state.word("optimizer") != "flow" or state.word("schedule") != "constant":
        raise ValueError(
            "a live page shows gradient flow at a constant rate. Choose flow and a constant schedule first."
        )
    numbers = state.count("classes") * (state.count("per_class") + 1) * state.count("dim")
    if numbers > LARGEST_CHOSEN:
        raise ValueError(
            f"the start has {numbers:,} numbers, and a live page holds at most {LARGEST_CHOSEN:,}. Lower C, N or p "
            "first."
        )


def _packed(values: Tensor) -> str:
    """The float64 numbers as text: every bit of them, in a third more bytes."""
    return base64.b64encode(values.contiguous().numpy().astype("<f8").tobytes()).decode()
