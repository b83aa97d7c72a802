"""Controls that several views have alike; what belongs to labels and starts is in `setting`, to rates in `clock`."""

from __future__ import annotations

from unhinge.web.controls import Control, choice, count, number

__all__ = ["AXES", "DECAYS", "REACH", "SEED", "decay_control", "gamma_control", "horizon_control"]


def gamma_control(words: str) -> Control:
    """The weight of the other logits, with the words that explain it in a view."""
    return number("gamma", "γ", words, None, 0.0, 1000.0, log=True, zero=True, slide=(1e-3, 10.0))


def decay_control(key: str, label: str, words: str, slide: tuple[float, float] = (1e-5, 1.0)) -> Control:
    """A decay, off unless asked for."""
    return number(key, label, words, 0.0, 0.0, 1000.0, log=True, zero=True, slide=slide)


def horizon_control(label: str, words: str, longest: int = 10**9) -> Control:
    """How far the curves go, chosen by the view unless asked for."""
    return count("horizon", label, words, None, 10, longest, log=True, slide=(100, min(longest, 1_000_000)))


DECAYS: tuple[Control, ...] = (
    decay_control("feature_decay", "feature decay λ₁", "Of the term λ₁/2 |H|²."),
    decay_control("weight_decay", "weight decay λ₂", "Of the term λ₂/2 |W|²."),
)
SEED = count("seed", "seed", "Of the random start.", 0, 0, 10**9, slide=(0, 50))
AXES = choice("axes", "picture", "Two or three dimensions.", (("2", "2-D"), ("3", "3-D")))
REACH = number(
    "reach",
    "distance asked",
    "How long until |Z/|Z| - limit| is this small?",
    1e-3,
    1e-14,
    1.9,
    log=True,
    slide=(1e-12, 1.0),
)
