"""Verdicts come from residuals, and say what the errata say."""

from __future__ import annotations

import io
import json
import math

import pytest
import torch
from rich.console import Console

from unhinge.paper.claims import Claim, Record, SharperCheck, claims, find, report
from unhinge.paper.claims.errata import ERRATA
from unhinge.paper.claims.registry import Undefined, claim

SLOW = "lemma-1", "figure-regularized-gamma-growth", "theorem-4-rate", "appendix-etf-objective", "theorem-3"


def made_up(printed: float, ours: float, severity: str = "", tolerance: float = 1e-6) -> Record:
    base = claims()[0]
    statement = Claim(
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
    return Record(statement, (printed,), (ours,), "division by 0" if math.isinf(printed) else "")


@pytest.fixture(scope="module")
def quick() -> list[Record]:
    return [statement.run() for statement in claims() if not statement.id.startswith(SLOW)]


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


def test_severity_decides_between_corrected_and_false_and_what_holds_has_none(quick: list[Record]):
    expected = {"A": "false as printed", "B": "corrected", "C": "corrected", "": "holds"}
    for record in quick:
        assert record.verdict == expected[record.claim.severity], record.claim.id


def test_a_claim_has_the_gravest_severity_of_its_errata():
    known = {entry.number: entry.severity for entry in ERRATA}
    for statement in claims():
        if statement.severity:
            assert statement.severity == min(known[number] for number in statement.errata), statement.id


def test_a_statement_that_holds_beside_an_erratum_says_why():
    """Where only the proof of a true statement is in error, `right` says so; else there is a remark."""
    for statement in claims():
        if statement.errata and not statement.severity:
            assert statement.remark.startswith("True as printed") or statement.right.startswith("as stated"), (
                statement.id
            )


def test_a_remark_belongs_to_a_statement_that_holds_and_a_loose_one_has_a_stricter_check():
    for statement in claims():
        if statement.remark:
            assert not statement.severity, statement.id
        if "True as printed, but" in statement.remark:
            assert statement.sharper is not None, statement.id


def test_every_erratum_is_settled_by_a_claim_or_said_to_be_beyond_numbers():
    settled = {number for statement in claims() for number in statement.errata}
    beyond = {entry.number for entry in ERRATA if entry.evidence.startswith("by reading; no number decides")}
    assert set(range(1, 41)) - settled == beyond == {21}


def test_a_failure_of_the_stricter_check_is_ours():
    statement = Claim(**{**vars(claims()[0]), "sharper": SharperCheck(lambda generator, formula: 1.0, 0.5, "reason")})
    assert statement.run().verdict == "OURS FAILS"
    assert statement.run().worst_sharper == 1.0


def test_residuals_do_not_depend_on_what_else_runs():
    (statement,) = find("theorem-2-exponential")
    assert statement.run(3) == statement.run(3)
    assert statement.run(3).printed != statement.run(4).printed


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


def test_an_explanation_has_printed_right_remark_evidence_and_residuals():
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(report.explain(find("corollary-2-rate")[0].run()))
    text = console.export_text()
    for word in ("printed", "right", "remark", "True as printed, but loose", "0.057735 measured", "sharper check"):
        assert word in text


def test_a_yes_or_no_is_explained_by_a_count_of_problems():
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(report.explain(find("theorem-2-theta-sign")[0].run()))
    assert "printed form wrong in 5 of 5, ours in 0 of 5" in console.export_text()


def test_brackets_in_a_statement_are_not_taken_for_markup():
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(report.explain(find("theorem-2-commutator")[0].run()))
    assert "λ₂[η₂(t₂)η₁(t₂) − η₂(t₁)η₁(t₂)]M" in console.export_text()


def test_the_global_seed_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    find("theorem-2-bias")[0].run()
    find("lemma-1-identity")[0].run()
    assert torch.equal(before, torch.get_rng_state())
