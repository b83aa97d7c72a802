"""A checker that cannot fail checks nothing: each is fed a wrong formula and must notice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from unhinge.paper.claims import claims, find
from unhinge.paper.claims.anchored import coefficient
from unhinge.paper.claims.appendix import binary_cross_entropies, binned, right_cross_entropy, right_shift
from unhinge.paper.claims.captions import both_plus_parts, growth_at_critical, right_growth
from unhinge.paper.claims.conventions import average_margin, flow_field, minus_average_margin
from unhinge.paper.claims.lemma1 import collapsed, far_from_balanced, minimum, right_spread
from unhinge.paper.claims.projections import class_deviations, five, subspace_1, subspace_2, subspace_3
from unhinge.paper.claims.regularized import right_drive, right_exponential
from unhinge.paper.claims.spherical import half_square, norm_bound, recurrence, right_step

Formula = Callable[..., Any]


def scaled(id: str, factor: float) -> Formula:
    """Our formula, times a factor."""
    (claim,) = find(id)
    return lambda *args: factor * claim.ours(*args)


def negated(id: str) -> Formula:
    """Our yes-or-no, reversed."""
    (claim,) = find(id)
    return lambda *args: not claim.ours(*args)


def moved(id: str) -> Formula:
    """Our state with its first entry off by a thousandth of its norm."""
    (claim,) = find(id)

    def formula(*args: Any) -> torch.Tensor:
        state = claim.ours(*args).clone()
        state.view(-1)[0] += 1e-3 * state.norm()
        return state

    return formula


WRONG: dict[str, Formula] = {
    "loss-column-order": lambda c, n: torch.ones(c, c * n, dtype=torch.float64) / c,
    "loss-logits": scaled("loss-logits", 1.001),
    "loss-gradient-flow": lambda *a: (flow_field(*a)[0], 2 * flow_field(*a)[1], flow_field(*a)[2]),
    "loss-flow-sign": lambda gradient: -1.1 * gradient,
    "loss-as-margin": lambda logits, label: 1.01 * minus_average_margin(logits, label),
    "loss-margin-bound": lambda logits, label: average_margin(logits, label) - 0.01,
    "lemma-1-value": lambda *a: minimum(*a) * 0.99,
    "lemma-1-minimizers": lambda weight, bound: far_from_balanced(weight - weight[0], bound),
    "lemma-1-large-gamma": lambda w, h, e1, e2: collapsed(w, -h, e1, e2),
    "lemma-1-identity": lambda weight: right_spread(weight) + 0.01,
    "theorem-1-flow": moved("theorem-1-flow"),
    "theorem-1-bias": lambda problem, clock: problem.bias + clock * problem.gamma,
    "theorem-1-scalars": scaled("theorem-1-scalars", 1.01),
    "theorem-1-ratio": scaled("theorem-1-ratio", 1.01),
    "theorem-1-generator": moved("theorem-1-generator"),
    "theorem-1-mean-line": scaled("theorem-1-mean-line", -1.0),
    "theorem-1-eigenvalues": lambda c, gamma: 3,
    "corollary-1-limit": lambda problem, s: find("corollary-1-limit")[0].ours(problem, 1.01 * s),
    "corollary-1-rate": scaled("corollary-1-rate", 1 + 1e-9),
    "corollary-1-genericity": moved("corollary-1-genericity"),
    "corollary-1-two-classes": moved("corollary-1-two-classes"),
    "corollary-1-bias-ratio": lambda bias, slope: (bias.max() / bias.min()).item(),
    "corollary-1-accuracy": lambda features, weight: 0.5 * find("corollary-1-accuracy")[0].ours(features, weight),
    "corollary-1-best-gamma": lambda c: (1 / c, 1 / c),
    "subspaces-orthogonal": lambda problem: [*five(problem)[:4], 0 * five(problem)[4]],
    "subspaces-dimensions": lambda c, n: [c, c, 1, 1, c * (n - 1)],
    "projection-mean-zero-prototypes": lambda rows: rows - rows[0],
    "projection-mean-zero-features": lambda rows, c, n: class_deviations(rows, 1, c * n),
    "projection-subspace-1": lambda problem, sign: subspace_1(problem, -sign),
    "projection-subspace-2": lambda problem, sign: 2 * subspace_2(problem, sign),
    "projection-subspace-3": lambda problem: 1.001 * subspace_3(problem),
    "theorem-2-flow": moved("theorem-2-flow"),
    "theorem-2-default": moved("theorem-2-default"),
    "theorem-2-exponential": lambda *a: right_exponential(*a).T,
    "theorem-2-bias": lambda decay, time: right_drive(2 * decay, time),
    "theorem-2-commutator": scaled("theorem-2-commutator", -1.0),
    "theorem-2-theta-sign": lambda *a: False,
    "corollary-2-direction": lambda problem, s: find("corollary-2-direction")[0].ours(problem, 1.1 * s),
    "corollary-2-appendix-norm": scaled("corollary-2-appendix-norm", 1.01),
    "corollary-2-rate": scaled("corollary-2-rate", 1 + 1e-9),
    "corollary-2-norm": lambda factor: 1.0,
    "corollary-2-proof-signs": lambda factor: 1.0,
    "corollary-2-critical-limit": lambda problem, s: find("corollary-2-critical-limit")[0].ours(problem, 1 / s),
    "corollary-2-self-duality": lambda factor, share: True,
    "corollary-2-etf-dimension": lambda c: c - 2,
    "imbalance-minority": lambda counts, *_: torch.tensor(counts) / counts[0],
    "theorem-3-flow": moved("theorem-3-flow"),
    "theorem-3-equation": scaled("theorem-3-equation", 1.01),
    "theorem-3-rate": lambda decay: 2 * decay,
    "theorem-3-zero-decay": lambda clock, decay: 0.25,
    "theorem-3-larger-decay": lambda decay, clock: 1 / coefficient(decay, clock),
    "theorem-3-penalty": lambda strength: 1 - strength,
    "theorem-4-step-condition": lambda rate, h, w: True,
    "rescaled-step-condition": lambda rate, h, w: True,
    "theorem-4-governing-quantity": lambda: 0,
    "theorem-4-step": lambda rate, h, w: right_step(2 * rate, h, w),
    "theorem-4-recurrence": lambda alpha, beta, factor: recurrence(alpha, beta, 1.0),
    "theorem-4-limit": lambda h, w: -w,
    "theorem-4-opposite": lambda h, w: w,
    "theorem-4-hypotheses": lambda power, factor: True,
    "theorem-4-bounded-norm": lambda *a: norm_bound(*a) / 2,
    "theorem-4-rate": lambda alpha: math.log(abs(1 - alpha / 2)),
    "theorem-4-alignment-form": lambda *a: half_square(*a) + 0.01,
    "rescaled-faster": lambda norm: norm < 1,
    "theorem-5-kernel": moved("theorem-5-kernel"),
    "theorem-5-product": moved("theorem-5-product"),
    "theorem-5-singular": moved("theorem-5-singular"),
    "theorem-5-learning-rate": lambda rate, time: 1.1 * rate * time,
    "theorem-5-squared-error": scaled("theorem-5-squared-error", 0.5),
    "appendix-threshold": scaled("appendix-threshold", 0.99),
    "appendix-threshold-again": scaled("appendix-threshold-again", 1.01),
    "appendix-lower-bound": lambda gamma: -1.0,
    "appendix-binary-bound": lambda *a: binary_cross_entropies(*a) - 0.01,
    "appendix-cross-entropy-bound": lambda *a: right_cross_entropy(*a) - 0.01,
    "appendix-adjusted-margin": lambda w, unit, eps: 1.01 * right_shift(w, unit, eps),
    "appendix-calibration-error": lambda confidence, correct, bins: binned(confidence, correct, bins + 1),
    "appendix-etf-objective": lambda log_softmax: 0 * log_softmax,
    "appendix-etf-closed-form": scaled("appendix-etf-closed-form", 1.01),
    "figure-1-growth": lambda gamma: 1.001 * right_growth(gamma),
    "figure-1-growth-others": lambda gamma: 1.1 * right_growth(gamma),
    "figure-1-orthogonal": lambda: 1.0,
    "figure-regularized-gamma-growth": lambda gamma: 1.01 * growth_at_critical(gamma),
    "figure-regularized-gamma-limit": lambda problem: 1.001 * both_plus_parts(problem),
    "figure-regularized-scale": negated("figure-regularized-scale"),
    "figure-regularized-scale-beyond": negated("figure-regularized-scale-beyond"),
    "figure-regularized-rate": lambda rate: rate**2,
    "figure-decay-drops-out": lambda distance, decay: distance * math.exp(-decay),
    "figure-spherical-norm": lambda alpha, theta: 1.0,
}


# What the stricter check of our form has to notice: too weak a statement, which the literal check lets pass.
TOO_WEAK: dict[str, Formula] = {
    "corollary-1-best-gamma": lambda c: (1 / (c - 1), 1 / (c - 1)),
    "corollary-2-rate": scaled("corollary-2-rate", 1 - 1e-9),
    "corollary-2-self-duality": lambda factor, share: factor == 1.0 and share < 1,
    "corollary-2-etf-dimension": lambda c: c,
    "theorem-3-penalty": lambda strength: strength,
    "theorem-4-step-condition": lambda rate, h, w: rate / h.norm() ** 2 <= 0.5 / w.norm(),
    "rescaled-step-condition": lambda rate, h, w: rate / h.norm() <= 0.5 / w.norm(),
    "theorem-4-limit": lambda h, w: h,
    "theorem-4-hypotheses": lambda power, factor: power <= 0.5 and factor == 1.0,
    "theorem-4-bounded-norm": lambda *a: 2 * norm_bound(*a),
    "appendix-cross-entropy-bound": lambda *a: right_cross_entropy(*a) + 1e-6,
    "figure-1-growth-others": lambda gamma: right_growth(0.0),
}


def test_every_claim_has_a_wrong_formula():
    assert set(WRONG) == {claim.id for claim in claims()}


@pytest.mark.parametrize("id", WRONG)
def test_a_wrong_formula_is_noticed(id: str):
    (claim,) = (statement for statement in claims() if statement.id == id)
    assert claim.residual(WRONG[id]) > claim.tolerance


def test_every_stricter_check_has_a_weak_formula():
    assert set(TOO_WEAK) == {claim.id for claim in claims() if claim.sharper}


@pytest.mark.parametrize("id", TOO_WEAK)
def test_a_weak_formula_is_noticed_by_the_stricter_check(id: str):
    (claim,) = (statement for statement in claims() if statement.id == id)
    assert claim.sharper is not None
    assert claim.sharper_residual(TOO_WEAK[id]) > claim.sharper.tolerance


@pytest.mark.parametrize("id", [id for id in TOO_WEAK if not id.startswith(("theorem-4-limit", "appendix"))])
def test_a_weak_formula_passes_the_literal_check(id: str):
    """So that the two checks of such a claim are not the same one twice."""
    (claim,) = (statement for statement in claims() if statement.id == id)
    assert claim.residual(TOO_WEAK[id]) <= claim.tolerance
