"""The page as HTML, made from the views' own descriptions: no view knows how it is drawn.

Dash holds the results and serves everything. Controls and panels are plain HTML around it: passing each move of a
slider through Dash's renderer and React took 300 ms of the browser's time, this takes none worth measuring.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape

from unhinge.web.controls import Control, written
from unhinge.web.lessons import LESSONS
from unhinge.web.panels import Answer, Slot
from unhinge.web.views import PICTURE, View

__all__ = ["POSITIONS", "index", "refusal", "spec", "answer_html"]

POSITIONS = 200  # of a slider from end to end
KINDS = (("png", "PNG"), ("svg", "SVG"), ("csv", "CSV"), ("python", "Python"))


def index(views: Sequence[View], controls: Mapping[str, Sequence[Control]], scripts: Sequence[str]) -> str:
    """The template of the page, with Dash's own places in it, and the addresses of the scripts it needs.

    Dash's scripts lie still in a template until the results are opened: most visits never need them.
    """
    data = json.dumps(spec(controls)).replace("</", "<\\/")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
{{%metas%}}
<title>{{%title%}}</title>
<link rel="icon" href="data:,">
{{%css%}}
</head>
<body>
<div id="page">
<a href="#main" class="skip">Skip to the curves</a>
{_header(views)}
<div id="notice" role="alert"></div>
<div id="story" role="status"><span></span><button data-do="end-story" aria-label="Close the lesson">✕</button></div>
<main id="main" tabindex="-1">
{"".join(_view(view) for view in views)}
<section id="view-results" class="view results-view" role="tabpanel" aria-labelledby="tab-results" hidden>
{{%app_entry%}}</section>
</main>
</div>
<dialog id="code" aria-labelledby="code-title"><h2 id="code-title">The same numbers in Python</h2>
<pre><code id="code-text"></code></pre>
<div class="row"><button data-do="copy-code">Copy</button><button data-do="save-code">Save as .py</button>
<button data-do="close-code">Close</button></div></dialog>
<div id="tooltip" role="tooltip"></div>
<script type="application/json" id="spec">{data}</script>
<template id="dash">{{%config%}}{{%scripts%}}{{%renderer%}}</template>
{"".join(f'<script src="{escape(script)}"></script>' for script in scripts)}
</body>
</html>"""


def _header(views: Sequence[View]) -> str:
    titles = [(view.key, view.title, view.help) for view in views]
    titles.append(("results", "Results", "What unhinge reproduce and unhinge train have written."))
    tabs = "".join(
        f'<button role="tab" id="tab-{key}" data-view="{key}" data-tip="{escape(help)}" aria-controls="view-{key}" '
        f'aria-selected="false">{escape(title)}</button>'
        for key, title, help in titles
    )
    return f"""<header><h1>unhinge</h1><div role="tablist" class="tabs" aria-label="views">{tabs}</div>
<div class="tools">
{_lessons()}
<button data-do="pin" aria-pressed="false" data-tip="Keep these curves, and compare others with them.">Pin</button>
<button data-do="reset" data-tip="All controls of this view to their defaults.">Reset</button>
<button data-do="copy-link" data-tip="The address holds the state of the page.">Copy link</button>
<a id="export" href="export" download="unhinge.html" class="button"
data-tip="This view as one file that needs nothing else.">Export HTML</a>
<a id="live" href="live" download="unhinge-live.html" class="button"
data-tip="Free features as one file with live sliders, for a web site: it needs no Python.">Live page</a>
<button id="look" data-do="look" data-tip="Light or dark.">Dark</button></div></header>"""


def _lessons() -> str:
    buttons = "".join(
        f'<button data-do="lesson" data-address="{escape(lesson.address)}" data-story="{escape(lesson.story)}">'
        f"{escape(lesson.title)}</button>"
        for lesson in LESSONS
    )
    return f'<details class="save lessons"><summary class="button">Lessons</summary><div>{buttons}</div></details>'


def _view(view: View) -> str:
    equation = re.sub(r"_([a-z])", r"<sub>\1</sub>", escape(view.equation))
    controls = "".join(_control(view.key, control) for control in view.controls)
    slots = "".join(_slot(view.key, slot) for slot in view.slots)
    return f"""<section id="view-{view.key}" class="view" role="tabpanel" aria-labelledby="tab-{view.key}" hidden>
<aside aria-label="parameters"><details open class="parameters"><summary>Parameters</summary>
<form class="controls" data-form="{view.key}" autocomplete="off">{controls}</form></details></aside>
<div class="answers"><p class="equation">{equation}</p>
<div id="told-{view.key}" class="told" aria-live="polite"></div>
<div class="grid">{slots}</div></div>
</section>
"""


def _slot(view: str, slot: Slot) -> str:
    name = f"{view}-{slot.key}"
    buttons = "".join(
        f'<button data-do="save" data-kind="{kind}" data-graph="{name}">{label}</button>' for kind, label in KINDS
    )
    player = (
        f'<div class="player"><button data-do="play" data-graph="{name}">▶ Play</button>'
        f'<input type="range" min="0" value="0" data-frames="{name}" aria-label="time">'
        f'<output id="moment-{name}"></output></div>'
        if slot.key == PICTURE
        else ""
    )
    return f"""<article class="panel panel-{slot.key}"><div class="panel-head"><h2>
<span id="title-{name}">{escape(slot.title)}</span>{_tip(slot.help)}</h2>
<details class="save"><summary aria-label="Save {escape(slot.title)}">Save</summary><div>{buttons}</div>
</details></div>
<div class="graph" id="graph-{name}" role="img" aria-label="{escape(slot.title)}: {escape(slot.help)}"></div>
{player}</article>
"""


def _tip(text: str) -> str:
    return f'<span class="tip" tabindex="0" role="note" data-tip="{escape(text)}" aria-label="{escape(text)}">?</span>'


def _control(view: str, control: Control) -> str:
    name = f"{view}-{control.key}"
    shown = "" if control.when is None else f' data-when="{control.when[0]}" data-in="{" ".join(control.when[1])}"'
    opening = f'<div class="control" data-control="{control.key}"{shown}>'
    label = f'<span class="label" id="label-{name}">{escape(control.label)} {_tip(control.help)}</span>'
    if control.kind == "choice":
        options = "".join(
            f'<label><input type="radio" name="{control.key}" value="{value}"'
            f"{' checked' if value == control.default else ''}>{escape(words)}</label>"
            for value, words in control.choices
        )
        group = f'<div class="choice" role="radiogroup" aria-labelledby="label-{name}">{options}</div>'
        return f"{opening}{label}{group}</div>"
    value = escape(written(control.default))
    if control.kind == "text":
        upload = ""
        if control.key == "file":
            upload = (
                f'<label class="file">Choose .npz<input type="file" accept=".npz" data-upload="{view}"></label>'
                f'<span class="small" id="uploaded-{view}" role="status"></span>'
            )
        return (
            f'{opening}<label>{label}<input class="text" type="text" name="{control.key}" value="{value}" '
            f'spellcheck="false"></label>{upload}</div>'
        )
    auto = ' placeholder="auto"' if control.default is None else ""
    return (
        f'{opening}<label>{label}<input class="number" type="text" inputmode="decimal" name="{control.key}" '
        f'value="{value}"{auto} spellcheck="false"></label>'
        f'<input type="range" class="slider" data-key="{control.key}" min="0" max="{POSITIONS}" step="1" '
        f'aria-label="{escape(control.label)}, slider"></div>'
    )


def answer_html(answer: Answer) -> str:
    """The words and numbers beside the curves."""
    sentences = "".join(f" <span>{escape(sentence)}</span>" for sentence in answer.sentences)
    numbers = "".join(
        f'<div tabindex="0" data-tip="{escape(entry.help)}"><dt>{escape(entry.label)}</dt>'
        f"<dd>{escape(entry.value)}</dd></div>"
        for entry in answer.numbers
    )
    return (
        f'<div class="headline {answer.tone}"><strong>{escape(answer.headline)}</strong>{sentences}</div>'
        f'<dl class="numbers">{numbers}</dl>'
    )


def refusal(words: str) -> str:
    """What is said instead of an answer."""
    return f'<div class="headline bad" role="alert"><strong>{escape(words[:1].upper() + words[1:])}</strong></div>'


def spec(controls: Mapping[str, Sequence[Control]]) -> dict[str, object]:
    """What the browser needs to know of the controls: their defaults and how sliders map to values."""
    return {
        view: {
            control.key: {
                "default": written(control.default),
                "kind": control.kind,
                "slide": list(control.slide),
                "log": control.log,
                "zero": control.zero,
            }
            for control in mine
        }
        for view, mine in controls.items()
    }
