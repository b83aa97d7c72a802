"""The report in a real browser: its claims are filtered and opened, without a script."""

from __future__ import annotations

import pytest

from unhinge.paper.claims import find
from unhinge.paper.claims.report import as_sealed_json
from unhinge.paper.report import write_report

NAMES = ("lemma-1-value", "theorem-2-bias", "theorem-1-flow")


@pytest.fixture
def report(browser, tmp_path):
    (tmp_path / "claims.json").write_text(as_sealed_json([find(name)[0].run() for name in NAMES]), encoding="utf-8")
    page = browser.new_page()
    page.goto(write_report(tmp_path).as_uri())
    yield page
    page.close()


def shown(page) -> list[str]:
    return [one.get_attribute("id") for one in page.locator("details.claim:visible").all()]


def test_claims_are_filtered_by_verdict_and_by_the_printed_number(report):
    assert shown(report) == [f"claim-{name}" for name in NAMES]
    report.check("#verdict-false-as-printed")
    assert shown(report) == ["claim-lemma-1-value"]
    report.check("#verdict-every")
    report.check("#part-theorem-4")
    assert shown(report) == ["claim-theorem-2-bias"]


def test_a_claim_opens_to_its_two_forms_and_the_evidence(report):
    one = find("theorem-2-bias")[0]
    assert one.right not in report.inner_text("#claim-theorem-2-bias")
    report.click("#claim-theorem-2-bias summary")
    opened = report.inner_text("#claim-theorem-2-bias")
    assert one.says in opened
    assert one.right in opened
    assert "printed as Theorem 4" in opened


def test_on_paper_there_are_claims_and_no_buttons(report):
    report.emulate_media(media="print")
    assert not report.locator(".filters").first.is_visible()
    assert shown(report) == [f"claim-{name}" for name in NAMES]


def test_a_sheet_of_paper_shows_the_numbers_and_the_statement_of_a_claim(report):
    report.set_viewport_size({"width": 688, "height": 1000})  # A4 between its margins: as narrow as a small window
    report.emulate_media(media="print")
    cells = report.locator("#claim-theorem-2-bias summary > span").all()
    assert len(cells) == 5
    assert all(cell.is_visible() for cell in cells)


def luminance(page, selector: str, of: str) -> float:
    """Of a colour as WCAG defines it, 0 for black and 1 for white."""
    color = page.eval_on_selector(selector, f"e => getComputedStyle(e).{of}")
    parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_in_a_bright_and_in_a_dark_room(report, scheme):
    report.emulate_media(color_scheme=scheme)
    ground = luminance(report, "body", "backgroundColor")
    assert (ground < 0.05) == (scheme == "dark")
    for selector in ("p", "nav a", ".holds .verdict", ".corrected .verdict", ".false-as-printed .verdict"):
        ink = luminance(report, selector, "color")
        assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) > 4.5, selector  # WCAG AA


def test_paper_is_white_in_a_dark_room_too(report):
    report.emulate_media(color_scheme="dark", media="print")
    assert luminance(report, "body", "backgroundColor") == 1
