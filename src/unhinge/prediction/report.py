"""One self-contained page with all answers: no script, no font and no image from elsewhere."""

from __future__ import annotations

import html
from pathlib import Path

from unhinge.prediction.advice import Recommendation
from unhinge.prediction.analysis import Prediction
from unhinge.prediction.figures import draw
from unhinge.prediction.words import CAVEAT, number, steps
from unhinge.results.environment import environment
from unhinge.results.json import write_json
from unhinge.results.look import save
from unhinge.results.page import page, picture, table

__all__ = ["collapse_rows", "write_report"]

# One printed sheet: smaller letters than other pages have, and two columns of tables.
STYLE = """
body { font-size: 14px; line-height: 1.4; max-width: 60rem; margin: 1.5rem auto; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.05rem; margin: 1rem 0 .3rem; }
ul { margin: .3rem 0; padding-left: 1.2rem; } figure { margin: .5rem 0; } th, td { padding: .15rem .5rem; }
.columns { display: flex; gap: 1.5rem; flex-wrap: wrap; } .columns > div { flex: 1 1 20rem; }
@page { margin: 10mm; }
@media print { body { font: 7.5pt/1.25 system-ui, sans-serif; margin: 0; }
  table { font-size: 6.8pt; } th, td { padding: .05rem .3rem; } .small { font-size: 6.8pt; }
  h1 { font-size: 13pt; margin: 0; } h2 { font-size: 9pt; margin: .3rem 0 .1rem; }
  figure { margin: .2rem 0; text-align: center; } figure img { max-height: 92mm; } .columns { flex-wrap: nowrap; }
  .columns > div { flex: 1 1 0; } }
"""
ALT = "Distance from the limit, norms, neural collapse, singular values, speed over gamma, class means in the limit"
COLLAPSE = {
    "nc1": "NC1, tr(Σ_W Σ_B⁺)/C",
    "nc1_ratio": "NC1, tr Σ_W / tr Σ_B",
    "nc2_norm_features": "NC2, spread of the norms of means",
    "nc2_angle_features": "NC2, angles of means",
    "nc2_etf_features": "NC2, means from a simplex",
    "nc2_angle_weight": "NC2, angles of prototypes",
    "nc3": "NC3, self-duality",
    "nc4": "NC4, differs from the nearest mean",
    "alignment": "alignment (1 at collapse)",
}


def collapse_rows(prediction: Prediction) -> list[tuple[str, ...]]:
    """Measure, now, when the distance is reached, in the limit."""
    parts = (prediction.collapse_now, prediction.collapse_then, prediction.collapse_limit)
    return [
        (name, *(number(_rounded(part[key]), 3) if key in part else "" for part in parts))
        for key, name in COLLAPSE.items()
        if key in prediction.collapse_now or key in prediction.collapse_limit
    ]


def _rounded(value: float) -> float:
    """Zero for what is only rounding: every measure is of order 1 before collapse."""
    return 0.0 if abs(value) < 1e-13 else value


def write_report(prediction: Prediction, advice: Recommendation, folder: Path, title: str) -> Path:
    """prediction.json, prediction.png, prediction.pdf and report.html into `folder`; returns the page."""
    image, _ = save(draw(prediction, title), folder, "prediction")
    made = environment()
    record = {"prediction": prediction.as_dict(), "recommendation": advice.as_dict(), "made_with": made}
    write_json(folder / "prediction.json", record)
    setting = prediction.setting
    versions = ", ".join(f"{name} {value}" for name, value in made["versions"].items())
    said = "\n".join(f"<li>{html.escape(sentence)}</li>" for sentence in prediction.findings)
    body = f"""<p class="small">n = {setting.num_samples:,} examples, C = {setting.num_classes:,}, p = {setting.dim:,};
γ = {number(setting.gamma)}, learning rate {number(setting.lr)}, feature decay {number(setting.feature_decay)}, weight
decay {number(setting.weight_decay)}. Head: {html.escape(setting.head)}.</p>
<ul>{said}</ul>
{picture(image, ALT)}
<div class="columns"><div>
<h2>Neural collapse</h2>
{table(("measure", "now", f"at distance {setting.distance:g}", "limit"), collapse_rows(prediction))}
</div><div>
<h2>Time to a distance</h2>
{table(("distance", "after"), [(f"{distance:g}", steps(time)) for distance, time in prediction.times.items()])}
{_weightings(prediction)}
</div></div>
<h2>Recommended, to reach the distance {advice.distance:g} with free features</h2>
{table(("", "value", "why"), _advice(advice))}
<p class="small">{html.escape(CAVEAT)} Times are steps of full-batch gradient descent in the limit of small rates.
{html.escape(versions)}; commit {html.escape(str(made["commit"] or "unknown"))}.</p>"""
    path = folder / "report.html"
    path.write_text(page(title, body, STYLE), encoding="utf-8")
    return path


def _advice(advice: Recommendation) -> list[tuple[str, ...]]:
    weights = "none" if advice.class_weight is None else _first_few(advice.class_weight)
    return [
        ("gamma", number(advice.gamma), advice.reasons["gamma"]),
        ("feature and weight decay", number(advice.weight_decay), advice.reasons["decay"]),
        ("learning rate", number(advice.lr), advice.reasons["lr"]),
        ("class weights", weights, advice.reasons["class_weight"]),
        ("strength of the decision", number(advice.decision_strength), advice.reasons["decision"]),
        ("epochs", f"{advice.epochs:,}", advice.reasons["epochs"]),
    ]


def _first_few(values: list[float]) -> str:
    return ", ".join(number(value, 3) for value in values[:6]) + (", ..." if len(values) > 6 else "")


def _weightings(prediction: Prediction) -> str:
    if prediction.cure is None:
        return ""
    rows = [
        (
            {"none": "none", "sqrt": "n_c^(-1/2)", "inverse": "1/n_c"}[weighting.name],
            f"{100 * weighting.limit_accuracy:.1f} %",
            f"{weighting.right_classes} of {prediction.setting.num_classes}",
            steps(weighting.time_to_distance),
        )
        for weighting in prediction.weightings
    ]
    heads = ("class weights", "limit accuracy", "classes right", f"to {prediction.setting.distance:g}")
    return f"<h2>Imbalance {prediction.imbalance:.4g}</h2>\n{table(heads, rows)}"
