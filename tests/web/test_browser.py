"""The page in a real Chromium: sliders, numbers, history, saving, both looks, a laptop and a phone."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from unhinge import LayerPeeled

LAPTOP, PHONE = {"width": 1366, "height": 768}, {"width": 390, "height": 844}
PATIENCE = 900_000  # ms: how long a busy machine may take is no statement about the page
RESTS = "!explorer.busy && !explorer.waiting && !explorer.picture"  # nothing is asked for any more
PAPER = "?view=free&classes=100&per_class=10&dim=512"


@pytest.fixture
def page(browser, served):
    context = browser.new_context(viewport=LAPTOP, color_scheme="light", accept_downloads=True)
    page = context.new_page()
    page.trouble = []
    page.hosts = set()
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("console", lambda said: page.trouble.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: page.hosts.add(urlsplit(request.url).netloc))
    yield page
    assert page.trouble == []
    assert {host for host in page.hosts if host} <= {urlsplit(served).netloc}  # nobody else was asked for anything
    context.close()


def answers(page) -> int:
    return page.evaluate("window.explorer ? explorer.answers : 0")


def visit(page, url) -> None:
    page.goto(url)
    page.wait_for_function(f"window.explorer && explorer.answers > 0 && {RESTS}", timeout=PATIENCE)


def after(page, act) -> None:
    """Do something and wait until its answer is drawn."""
    before = answers(page)
    act()
    page.wait_for_function(f"explorer.answers > {before} && {RESTS}", timeout=PATIENCE)


def slider(page, key, view="free"):
    return page.locator(f"form[data-form={view}] input.slider[data-key={key}]")


def box(page, key, view="free"):
    return page.locator(f"form[data-form={view}] input[name={key}]")


def drawn(page, panel, curve=0) -> tuple[list[float], list[float]]:
    return tuple(
        page.evaluate(
            f"[[...byId.data[{curve}].x], [...byId.data[{curve}].y]]".replace(
                "byId", f"document.getElementById('graph-{panel}')"
            )
        )
    )


def shots() -> Path | None:
    """Where screenshots are kept, if someone wants to look at them."""
    folder = os.environ.get("UNHINGE_SCREENSHOTS")
    return Path(folder) if folder else None


def test_a_moved_slider_draws_what_the_library_says(page, served):
    visit(page, served)
    slider(page, "gamma").focus()
    for _ in range(3):
        after(page, lambda: page.keyboard.press("ArrowRight"))
    gamma = float(box(page, "gamma").input_value())
    assert gamma > 1 / 9
    rows = torch.randn(60, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    path = LayerPeeled(torch.arange(10).repeat_interleave(5), 10, gamma=gamma).flow(rows[:50], rows[50:], lr=0.1)
    x, y = drawn(page, "free-distance")
    moments = torch.tensor(x, dtype=torch.float64)
    assert y == pytest.approx(path.distance(moments).tolist(), rel=1e-9)
    x, y = drawn(page, "free-norms", 1)
    assert y == pytest.approx(path.weight_norm(torch.tensor(x, dtype=torch.float64)).tolist(), rel=1e-9)
    said = page.locator("#told-free").inner_text()
    assert f"{path.time_to(1e-3).item():,.0f} time units" in said
    assert f"gamma={gamma}" in page.url


@pytest.mark.parametrize("view", ["noise", "sphere"])
def test_sliders_of_a_view_opened_by_its_tab_stand_where_its_numbers_say(page, served, view):
    def positions() -> dict[str, str]:
        sliders = page.locator(f"form[data-form={view}] input.slider")
        return dict(sliders.evaluate_all("all => all.map((one) => [one.dataset.key, one.value])"))

    visit(page, served)
    after(page, lambda: page.locator(f"[role=tab][data-view={view}]").click())
    by_tab = positions()
    visit(page, f"{served}?view={view}")
    assert by_tab == positions()
    assert len(set(by_tab.values())) > 2


def test_words_tell_what_fails(page, served):
    visit(page, served + "?gamma=0.3")
    assert "γ is above 2/(C-2) = 0.25" in page.locator("#told-free").inner_text()


def test_a_key_on_a_slider_asks_once_and_draws_every_panel(page, served):
    """What a move costs is one request and one drawing; how long that takes is measured by benchmarks/explorer.py."""
    visit(page, served + PAPER)
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/answer" in request.url else None)
    slider(page, "gamma").focus()
    for _ in range(4):
        before = page.evaluate("explorer.answers")
        after(page, lambda: page.keyboard.press("ArrowRight"))
        assert page.evaluate("explorer.answers") == before + 1
    assert len(asked) == 4


def test_dragging_asks_for_one_state_at_a_time_and_ends_at_the_last_and_its_picture(page, served):
    visit(page, served)
    asked, pictures = [], []
    page.on("request", lambda request: asked.append(request.url) if "/answer" in request.url else None)
    page.on("request", lambda request: pictures.append(request.url) if "/picture" in request.url else None)
    place = slider(page, "lr").bounding_box()
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.mouse.down()
    for step in range(40):
        page.mouse.move(place["x"] + place["width"] * (0.5 + step / 100), place["y"] + place["height"] / 2)
    page.mouse.up()
    page.wait_for_function(RESTS, timeout=PATIENCE)
    lr = box(page, "lr").input_value()
    assert float(lr) > 0.1
    assert len(asked) < 40
    assert f"lr={lr}" in asked[-1]
    assert f"lr={lr}" in pictures[-1]
    assert len(pictures) <= len(asked)  # none while the slider moves
    assert page.evaluate("explorer.moving['free-moving'].frames.length") > 10


def test_the_back_button_goes_back_and_the_address_can_be_shared(page, served, browser):
    visit(page, served)
    after(page, lambda: page.get_by_text("long tail", exact=True).first.click())
    page.wait_for_timeout(800)
    after(page, lambda: page.get_by_role("tab", name="Sphere").click())
    shared = page.url
    assert "view=sphere" in shared
    after(page, page.go_back)
    assert page.get_by_role("tab", name="Free").get_attribute("aria-selected") == "true"
    assert page.locator("form[data-form=free] input[name=profile][value=tail]").is_checked()
    after(page, page.go_back)
    assert page.locator("form[data-form=free] input[name=profile][value=balanced]").is_checked()
    after(page, page.go_forward)
    assert "profile=tail" in page.url
    other = browser.new_page()
    visit(other, served + "?view=free&profile=step&ratio=4&gamma=0.2")
    assert other.locator("form[data-form=free] input[name=profile][value=step]").is_checked()
    assert other.locator("form[data-form=free] input[name=ratio]").input_value() == "4"
    other.close()


def test_bad_values_in_the_address_and_in_fields_give_messages(page, served):
    visit(page, served + "?gamma=lots&classes=0")
    notice = page.locator("#notice").inner_text()
    assert "γ must be a number" in notice
    assert "classes C must lie between 2 and 1000" in notice
    after(page, lambda: box(page, "dim").fill("99999999"))
    assert "dimension p must lie between" in page.locator("#notice").inner_text()
    after(page, lambda: box(page, "dim").fill("16"))
    assert page.locator("#notice").inner_text() == ""


def test_an_upload_is_solved_and_a_bad_one_refused(page, served, tmp_path):
    visit(page, served)
    after(page, lambda: page.get_by_text("own .npz", exact=True).click())
    assert "Choose an .npz" in page.locator("#told-free").inner_text()
    (tmp_path / "bad.npz").write_bytes(b"nonsense")
    page.locator("input[data-upload=free]").set_input_files(tmp_path / "bad.npz")
    page.wait_for_function("document.getElementById('uploaded-free').textContent.includes('no .npz')")
    page.trouble.clear()  # Chromium logs the refusal, status 400, as an error
    random = np.random.default_rng(1)
    features, weight, labels = random.normal(size=(9, 4)), random.normal(size=(3, 4)), np.arange(9) % 3
    np.savez(tmp_path / "good.npz", features=features, weight=weight, labels=labels)
    after(page, lambda: page.locator("input[data-upload=free]").set_input_files(tmp_path / "good.npz"))
    x, y = drawn(page, "free-distance")
    path = LayerPeeled(torch.tensor(labels), 3).flow(torch.tensor(features), torch.tensor(weight), lr=0.1)
    assert y == pytest.approx(path.distance(torch.tensor(x, dtype=torch.float64)).tolist(), rel=1e-9)


def saved(page, panel, kind) -> Path:
    page.locator(f"article:has(#graph-{panel}) details.save summary").click()
    with page.expect_download(timeout=PATIENCE) as waiting:
        page.locator(f"[data-do=save][data-kind={kind}][data-graph={panel}]").click()
    return Path(waiting.value.path())


def test_figures_are_saved_as_png_svg_csv_and_python(page, served):
    visit(page, served)
    assert saved(page, "free-norms", "png").read_bytes()[:4] == b"\x89PNG"
    assert saved(page, "free-norms", "svg").read_text().lstrip().startswith("<svg")
    with saved(page, "free-norms", "csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    x, y = drawn(page, "free-norms", 0)
    mine = [row for row in rows if row["curve"] == "features |H|"]
    assert [float(row["x"]) for row in mine] == x
    assert [float(row["y"]) for row in mine] == y
    page.locator("article:has(#graph-free-norms) details.save summary").click()
    page.locator("[data-do=save][data-kind=python][data-graph=free-norms]").click()
    names: dict = {}
    exec(page.locator("#code-text").inner_text(), names)
    assert names["curves"]["features |H|"][1].tolist() == pytest.approx(y, rel=1e-12)
    page.keyboard.press("Escape")
    assert not page.locator("#code").is_visible()


def test_an_export_opens_alone_with_its_curves(page, served, browser, tmp_path):
    visit(page, served + "?view=free&gamma=0.2")
    with page.expect_download(timeout=PATIENCE) as waiting:
        page.locator("#export").click()
    file = tmp_path / "alone.html"
    waiting.value.save_as(file)
    context = browser.new_context(offline=True)
    alone = context.new_page()
    asked = []
    alone.on(
        "request", lambda request: asked.append(request.url) if not request.url.startswith(("data:", "blob:")) else None
    )
    alone.goto(file.as_uri())
    alone.wait_for_function("document.querySelectorAll('.graph .main-svg').length >= 12", timeout=PATIENCE)
    assert asked == [file.as_uri()]
    assert alone.evaluate("[...document.getElementById('graph-distance').data[0].y]") == drawn(page, "free-distance")[1]
    context.close()


def test_the_picture_plays(page, served):
    visit(page, served)
    place = page.locator("[data-frames=free-moving]")
    first = int(place.input_value())
    before = page.evaluate("[...document.getElementById('graph-free-moving').data[0].x]")
    page.locator("[data-do=play][data-graph=free-moving]").click()
    page.wait_for_function(
        f"Number(document.querySelector('[data-frames=free-moving]').value) > {first + 2}", timeout=PATIENCE
    )
    page.locator("[data-do=play][data-graph=free-moving]").click()
    assert page.evaluate("[...document.getElementById('graph-free-moving').data[0].x]") != before


def test_everything_works_from_the_keyboard(page, served):
    visit(page, served)
    page.get_by_role("tab", name="Free").focus()
    after(page, lambda: page.keyboard.press("ArrowRight"))
    assert "view=sphere" in page.url
    after(page, lambda: page.keyboard.press("ArrowLeft"))
    reached = set()
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("(e => e.name || e.dataset.key || e.dataset.do || '')(document.activeElement)"))
    for key in ("gamma", "classes", "profile", "lr", "reset", "look"):
        assert key in reached, reached
    page.locator("form[data-form=free] input[name=optimizer][value=flow]").focus()
    after(page, lambda: page.keyboard.press("ArrowRight"))
    assert "optimizer=descent" in page.url


def test_hints_explain_on_hover(page, served):
    visit(page, served)
    page.locator("#label-free-gamma .tip").hover()
    assert "Weight of the other logits" in page.locator("#tooltip").inner_text()
    assert page.locator("#tooltip").evaluate("element => getComputedStyle(element).visibility") == "visible"


@pytest.mark.parametrize("view", ["free", "sphere", "noise"])
def test_a_laptop_shows_everything_on_one_screen(page, served, view):
    visit(page, served + f"?view={view}")
    for panel in page.locator(f"#view-{view} article").all():
        place = panel.bounding_box()
        assert place["y"] + place["height"] <= LAPTOP["height"] + 1
        assert place["x"] + place["width"] <= LAPTOP["width"]
        assert place["height"] > 150
    assert page.evaluate("document.documentElement.scrollHeight") <= LAPTOP["height"]
    if shots():
        page.screenshot(path=shots() / f"{view}.png")


@pytest.mark.parametrize("setting", ["&classes=200", "&classes=2&per_class=1&gamma=0&s=0.01&lr=0.001"])
def test_long_numbers_leave_room_for_the_name_of_their_axis(page, served, setting):
    visit(page, served + "?view=free" + setting)
    for graph in page.locator("#view-free .js-plotly-plot:has(.ytitle)").all():
        name = graph.locator(".ytitle").bounding_box()
        for number in (number.bounding_box() for number in graph.locator(".ytick text").all()):
            beside = number["x"] >= name["x"] + name["width"]
            above = number["y"] + number["height"] <= name["y"] or number["y"] >= name["y"] + name["height"]
            assert beside or above, graph.get_attribute("id")


def test_a_phone_shows_everything_in_one_column(page, served):
    page.set_viewport_size(PHONE)
    visit(page, served)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator("#graph-free-loss .main-svg").first.bounding_box()["width"] > 300
    page.locator("#view-free details.parameters > summary").click()
    assert slider(page, "gamma").is_visible()
    if shots():
        page.screenshot(path=shots() / "phone.png", full_page=True)


def luminance(color: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("look", ["light", "dark"])
def test_both_looks_can_be_read(page, served, look):
    page.emulate_media(color_scheme=look)
    visit(page, served)
    assert page.evaluate("document.documentElement.dataset.look") == look
    for query in (".label", ".numbers dd", ".numbers dt", ".headline strong", "h2"):
        ink = page.locator(f"#view-free {query}").first.evaluate("e => getComputedStyle(e).color")
        ground = page.locator(".told").first.evaluate("e => getComputedStyle(e).backgroundColor")
        bright, dim = sorted((luminance(ink), luminance(ground)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) > 4.5, query
    paper = page.evaluate("document.getElementById('graph-free-loss').layout.paper_bgcolor")
    assert paper == {"light": "#ffffff", "dark": "#1b1f25"}[look]
    after(page, lambda: page.locator("#look").click())
    assert page.evaluate("document.documentElement.dataset.look") != look


def test_results_can_be_browsed(page, served):
    visit(page, served + "?view=results")
    page.get_by_text("A claim with <angle> brackets").first.wait_for(timeout=PATIENCE)
    page.get_by_text("printed in the paper").wait_for()
    page.get_by_role("button", name="runs/digits").click()
    page.get_by_text("2 epochs; test accuracy 0.8000").wait_for(timeout=PATIENCE)
    assert "item=runs%2Fdigits" in page.url
    page.go_back()
    page.get_by_text("printed in the paper").wait_for(timeout=PATIENCE)
    assert json.dumps(sorted(page.hosts))  # the fixture looks at them


def test_a_lesson_sets_the_sliders_and_tells_its_story(page, served):
    from unhinge.web.lessons import LESSONS

    visit(page, served)
    for lesson in LESSONS:
        page.locator(".lessons summary").click()
        after(page, lambda lesson=lesson: page.get_by_role("button", name=lesson.title).click())
        assert page.locator("#story").inner_text().startswith(lesson.story[:40])
        assert page.url.endswith(lesson.address)
        assert not page.locator("#notice").inner_text()
    page.get_by_label("Close the lesson").click()
    assert not page.locator("#story").is_visible()


def test_pinned_curves_stay_below_the_new_ones_until_they_are_unpinned(page, served):
    visit(page, served)
    names = "Array.from(document.getElementById('graph-free-distance').data, (trace) => trace.name)"
    after(page, lambda: page.locator("[data-do=pin]").click())
    after(page, lambda: box(page, "gamma").fill("0.05"))
    assert page.evaluate(names) == ["pinned: distance", "pinned: predicted slope", "distance", "predicted slope"]
    first = page.evaluate("document.getElementById('graph-free-distance').data[0].y[100]")
    assert first != page.evaluate("document.getElementById('graph-free-distance').data[2].y[100]")
    after(page, lambda: page.locator("[data-do=pin]").click())
    assert page.evaluate(names) == ["distance", "predicted slope"]


def test_a_quotient_is_a_number_and_a_slip_is_marked(page, served):
    visit(page, served)
    after(page, lambda: box(page, "gamma").fill("1/9"))
    assert not page.locator("#notice").inner_text()
    assert box(page, "gamma").get_attribute("aria-invalid") == "false"
    after(page, lambda: box(page, "gamma").fill("1/9x"))
    assert "γ must be a number" in page.locator("#notice").inner_text()
    assert "default" not in page.locator("#notice").inner_text()
    assert box(page, "gamma").get_attribute("aria-invalid") == "true"


def test_everything_is_within_reach_on_a_phone(browser, served):
    phone = browser.new_page(viewport={"width": 390, "height": 800})
    visit(phone, served)
    for name in ("Lessons", "Pin", "Reset", "Copy link", "Export HTML", "Free & regularized", "Sphere", "Results"):
        place = phone.locator("header").get_by_text(name, exact=True).bounding_box()
        assert place is not None, name
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= 390, name
    phone.close()


def test_near_the_critical_decay_a_step_of_the_slider_is_finer(page, served):
    """Lesson 2 asks to find the critical decay with the sliders: 200 positions over five decades would jump over it."""
    visit(page, f"{served}?view=free&feature_decay=0.05&weight_decay=0.05")
    critical = page.evaluate("explorer.critical.free")
    assert critical == pytest.approx(LayerPeeled(torch.arange(10).repeat_interleave(5), 10).critical_decay.item())
    after(page, lambda: box(page, "weight_decay").fill(repr(critical)))
    slider(page, "weight_decay").focus()
    after(page, lambda: page.keyboard.press("ArrowRight"))
    assert 0 < float(box(page, "weight_decay").input_value()) / critical - 1 < 0.03
    after(page, lambda: box(page, "weight_decay").fill("0.0005"))
    slider(page, "weight_decay").focus()
    after(page, lambda: page.keyboard.press("ArrowRight"))
    assert float(box(page, "weight_decay").input_value()) > 0.0005 * 1.04
