"""Verdicts come from residuals, and say what the errata say."""

from __future__ import annotations

import json
import math

import pytest
import torch

from unhinge.claims import Claim, Record, UnknownClaim, claims, find, report
from unhinge.claims.registry import Undefined, claim

SLOW = "lemma-1", "figure-regularized-gamma-growth", "theorem-4-rate", "appendix-etf-objective", "theorem-3"


def made_up(printed: float, ours: float, severity: str = "", tolerance: float = 1e-6) -> Record:
    base = claims()[0]
    one = Claim(
        "made-up",
        "title | with a bar & <tag>",
        "label",
        "says",
        "right",
        "oracle",
        base.check,
        lambda: printed,
        lambda: ours,
        tolerance,
        "reason",
        (7,),
        severity,  # type: ignore[arg-type]
    )
    return Record(one, (printed,), (ours,), "division by 0" if math.isinf(printed) else "")


@pytest.fixture(scope="module")
def quick() -> list[Record]:
    return [one.run() for one in claims() if not one.id.startswith(SLOW)]


def test_a_printed_form_within_tolerance_holds():
    assert made_up(1e-9, 1e-9).verdict == "holds"


def test_a_printed_form_outside_it_is_corrected_or_false_by_severity():
    assert made_up(1.0, 1e-9, "B").verdict == "corrected"
    assert made_up(1.0, 1e-9, "A").verdict == "false as printed"
    assert made_up(math.inf, 1e-9, "A").verdict == "false as printed"


def test_our_own_failure_comes_first_even_when_the_printed_form_is_right():
    assert made_up(1e-9, 1e-3).verdict == "OURS FAILS"
    assert made_up(1e-9, math.inf).verdict == "OURS FAILS"


def test_nan_counts_as_a_failure():
    nan = Claim(**{**vars(claims()[0]), "check": lambda generator, formula: math.nan})
    assert nan.run().verdict == "OURS FAILS"


def test_an_undefined_form_says_why():
    def undefined(*_: object) -> None:
        raise Undefined("0/0")

    record = Claim(**{**vars(find("theorem-2-flow")[0]), "printed": undefined}).run()
    assert record.undefined == "0/0"
    assert record.worst_printed == math.inf


def test_our_statements_hold(quick: list[Record]):
    assert not [(r.claim.id, r.worst_ours) for r in quick if r.verdict == "OURS FAILS"]


def test_severity_a_is_false_as_printed_and_an_erratum_with_severity_b_is_not_said_to_hold(quick: list[Record]):
    for record in quick:
        if record.claim.severity == "A":
            assert record.verdict == "false as printed", record.claim.id
        if record.claim.severity == "B":
            assert record.verdict == "corrected", record.claim.id
        if not record.claim.errata:
            assert record.verdict == "holds", record.claim.id


def test_every_erratum_but_the_pure_misprints_is_settled_by_a_claim():
    settled = {number for one in claims() for number in one.errata}
    assert set(range(1, 41)) - settled == {21}  # 21: captions of other panels


def test_residuals_do_not_depend_on_what_else_runs():
    (one,) = find("theorem-2-exponential")
    assert one.run(3) == one.run(3)
    assert one.run(3).printed != one.run(4).printed


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("thm2", "theorem-2-bias"),
        ("Theorem 2", "theorem-2-bias"),
        ("cor1", "corollary-1-rate"),
        ("lemma1", "lemma-1-identity"),
        ("PAL-dynamics", "theorem-3-flow"),
        ("erratum-10", "theorem-2-bias"),
        ("e10", "theorem-2-bias"),
        ("theorem-2-bias", "theorem-2-bias"),
    ],
)
def test_a_claim_is_found_by_short_name_label_and_erratum(name: str, id: str):
    assert id in [one.id for one in find(name)]


def test_a_miss_lists_the_nearest_names():
    with pytest.raises(UnknownClaim, match="theorem-2-bias"):
        find("theorem-2-biass")


def test_two_claims_cannot_share_an_id():
    with pytest.raises(ValueError, match="two claims"):
        claim("theorem-2-bias", title="", where="", says="", ours=min, oracle="", tolerance=0, because="")(
            lambda generator, formula: 0.0
        )


def test_reports_escape_and_keep_every_row(quick: list[Record]):
    rows = [made_up(math.inf, 0.0, "A"), *quick]
    markdown = report.as_markdown(rows)
    assert markdown.count("\n| `") == len(rows)
    assert "title \\| with" in markdown
    html = report.as_html(rows)
    assert html.count("<tr class=") == len(rows)
    assert "&lt;tag&gt;" in html
    records = json.loads(report.as_json(rows))
    assert len(records) == len(rows)
    assert records[0]["printed_residual"] is None
    assert records[0]["printed_undefined"] == "division by 0"
    assert len(report.as_csv(rows).splitlines()) == len(rows) + 1


def test_the_global_seed_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    find("theorem-2-bias")[0].run()
    find("lemma-1-identity")[0].run()
    assert torch.equal(before, torch.get_rng_state())
