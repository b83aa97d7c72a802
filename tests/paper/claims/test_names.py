"""A claim answers to its id, its group, the paper's labels and the errata."""

from __future__ import annotations

import pytest

from unhinge.paper.claims import UnknownClaim, claims, find

LABELS = [
    "the-unhinged-loss",
    "neural-collapse-of-unhinged",
    "main-results",
    "unconstrain-optimization",
    "objective",
    "gradient-flow",
    "closed-form-dynamics",
    "closed-form-zt",
    "fig:unconstrained-loss",
    "fig:unconstrained-accuracy",
    "fig:unconstrained-error-z",
    "fig:unconstrained-norm-z",
    "unconstrained-illustration",
    "convergence-unconstrained-case",
    "dynamics-of-Z(t)",
    "convergence-rate-unconstrained-case",
    "regularized-objective",
    "regularized-gradient-flow",
    "closed-form-dynamics-l2",
    "convergence-of-dynamics-l2",
    "convergence-of-Z-l2",
    "eq:pal",
    "PAL-dynamics",
    "sec:spherical-case",
    "spherical-objective",
    "normalized-discrete-dynamics",
    "convergence-of-spherical-case",
    "dynamics-under-NTK",
    "insights",
    "the-unhinged-loss-with-pal",
    "explicit-regularization",
    "rescaled-lr-for-the-spherical",
    "clarification-of-unhinged-loss",
    "five-orthogonal-subspaces",
    "proof-of-closed-form-dynamics",
    "decomposition-H-W",
    "convergence-of-sperical-case-for-vector",
    "discrete-dynamics-of-H",
    "discrete_dynamical-system",
    "lim-with-beta-ge-0",
    "contradiction",
    "projection-of-subspaces",
    "projection-of-zero-centroid-protoytpes",
    "projection-of-zero-centroid-features",
    "projection-of-subspace1",
    "fig:unconstrained-log-W",
    "fig:unconstrained-log-W-minus-P",
    "fig:unconstrained-log-H-W",
    "fig:unconstrained-behaviors",
    "regularized-gamma",
    "fig:regularized-gamma-norm-h",
    "regularized-lr",
    "fig:regularized-lr-error_h",
    "regularized-lambda",
    "fig:regularized-lambda-accuracy",
    "regularized-scale",
    "fig:regularized-scale-error-w",
    "spherical-lr-behaviors",
    "fig:spherical-lr-error",
    "fig:spherical-rescale-error",
    "pal-toy",
    "fig:pal-error",
    "appendix-experiments",
    "potential-insights",
]


@pytest.mark.parametrize("label", LABELS)
def test_every_label_of_the_theory_leads_to_claims(label: str):
    assert find(label)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("thm1", "theorem-1-"),
        ("thm2", "theorem-2-"),
        ("thm3", "theorem-3-"),
        ("thm4", "theorem-4-"),
        ("thm5", "theorem-5-"),
        ("Theorem 2", "theorem-2-"),
        ("Thm. 2", "theorem-2-"),
        ("cor1", "corollary-1-"),
        ("cor2", "corollary-2-"),
        ("Corollary 2", "corollary-2-"),
        ("lemma1", "lemma-1-"),
        ("lem1", "lemma-1-"),
        ("fig1", "figure-1-"),
        ("figure", "figure-"),
        ("loss", "loss-"),
        ("appendix", "appendix-"),
        ("projection", "projection-"),
        ("rescaled", "rescaled-"),
    ],
)
def test_a_group_name_finds_the_whole_group_and_nothing_else(name: str, start: str):
    assert {statement.id for statement in find(name)} == {
        statement.id for statement in claims() if statement.id.startswith(start)
    }


@pytest.mark.parametrize("statement", claims(), ids=lambda statement: statement.id)
def test_a_claim_is_found_by_its_id_alone_and_by_its_label_and_errata_among_others(statement):
    assert find(statement.id) == (statement,)
    if " " not in statement.where:
        assert statement in find(statement.where)
    for number in statement.errata:
        assert statement in find(f"erratum-{number}")
        assert statement in find(f"e{number}")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("theorem-2-biass", "theorem-2-bias"), ("thm22", "theorem-2"), ("closed-form-dynamic", "closed-form-dynamics")],
)
def test_a_miss_lists_the_nearest_names(wrong: str, near: str):
    with pytest.raises(UnknownClaim, match=near):
        find(wrong)


def test_a_name_like_no_other_lists_the_groups():
    with pytest.raises(UnknownClaim, match="thm1 to thm5"):
        find("qqq")


def test_an_erratum_beyond_numbers_says_so():
    with pytest.raises(UnknownClaim, match="no number decides"):
        find("erratum-21")


def test_an_erratum_that_is_not_there_is_an_ordinary_miss():
    with pytest.raises(UnknownClaim, match="no claim is called 'erratum-41'"):
        find("erratum-41")
