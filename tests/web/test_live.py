"""The page with live sliders and no Python: its numbers in a real browser against those of the library."""

from __future__ import annotations

import json

import pytest
import torch

from unhinge.web.address import default_state
from unhinge.web.live import classes_offered, live_page
from unhinge.web.view_free import FREE, solve_free

START = default_state("free", FREE.controls)
TIMES = [0.0, 0.5, 7.0, 60.0, 400.0, 2500.0, 9000.0]
SETTINGS = [
    {},
    {"gamma": 0.02},
    {"gamma": 0.0},
    {"gamma": 0.25},  # 2/(C-2): both groups lead
    {"gamma": 0.7},
    {"classes": 2},
    {"classes": 2, "gamma": 3.0, "s": 0.3},
    {"classes": 30, "lr": 0.9},
    {"feature_decay": 0.01, "weight_decay": 0.01},
    {"feature_decay": 0.3, "weight_decay": 0.002, "s": 5.0},
    {"feature_decay": 0.1, "weight_decay": 0.2, "gamma": 1 / 9},
    {"weight_decay": 0.05, "s": 0.1, "gamma": 0.4, "classes": 5},
]


@pytest.fixture(scope="module")
def live(browser, tmp_path_factory):
    file = tmp_path_factory.mktemp("live") / "page.html"
    file.write_text(live_page(START), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.trouble, page.asked = [], []
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("console", lambda said: page.trouble.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("#distance svg path")
    yield page
    assert page.trouble == []
    assert [url for url in page.asked if not url.startswith("file:")] == []
    page.close()


@pytest.mark.parametrize("setting", SETTINGS, ids=json.dumps)
def test_the_browser_computes_what_the_library_computes(live, setting):
    state = START.replaced(**setting)
    asked = {key: state[key] for key in ("classes", "gamma", "feature_decay", "weight_decay", "lr", "s")}
    actual = live.evaluate("asked => unhinge.answer(asked)", asked | {"times": TIMES})
    path = solve_free(state).path
    times = torch.tensor(TIMES, dtype=torch.float64)
    for name in ("loss", "feature_norm", "weight_norm"):
        wanted = getattr(path, name)(times)
        size = (path.feature_norm(times) * path.weight_norm(times)) if name == "loss" else wanted
        values = torch.tensor(actual[name], dtype=torch.float64)
        finite = torch.isfinite(wanted)
        assert torch.equal(values[~finite], wanted[~finite])  # a loss of minus infinity is one in both
        assert ((values - wanted).abs() / size)[finite].max() < 1e-9, name
    distance = torch.tensor(actual["distance"], dtype=torch.float64)
    assert (distance - path.distance(times)).abs().max() < 1e-9
    assert actual["accuracy"] == pytest.approx(path.accuracy(times).tolist(), abs=1e-9)
    assert actual["growth"] == pytest.approx(path.growth().item(), rel=1e-9, abs=1e-12)
    assert actual["rate"] == pytest.approx(path.rate().item(), rel=1e-9, abs=1e-12)
    assert actual["critical"] == pytest.approx(solve_free(state).problem.critical_decay.item(), rel=1e-9)


def test_sliders_and_numbers_move_the_curves(live):
    def curve() -> str:
        return live.locator("#distance svg path").first.get_attribute("d")

    before = curve()
    live.fill("#gamma", "1/20")
    assert curve() != before
    live.fill("#gamma", "much")
    assert "invalid" in live.locator("#gamma").get_attribute("class")
    live.fill("#gamma", "")
    assert curve() == before
    live.click("#critical")
    assert "settle at a finite value" in live.inner_text("#words")
    live.locator("#lr-slider").focus()
    live.keyboard.press("ArrowRight")
    assert live.input_value("#lr") != "0.1"
    live.locator("#classes").focus()
    live.keyboard.press("ArrowRight")
    assert live.inner_text("#classes-shown") == "12"


def test_near_the_critical_decay_a_step_of_the_slider_is_small(live):
    """Both decays follow their sliders; around the critical value 80 of 1000 steps lie within five percent."""
    live.fill("#gamma", "")
    live.click("#critical")
    critical = float(live.input_value("#feature_decay"))
    for key, side in (("ArrowRight", 1), ("ArrowLeft", -1)):
        live.click("#critical")
        live.locator("#weight_decay-slider").focus()
        live.keyboard.press(key)
        live.keyboard.press(key)
        moved = float(live.input_value("#weight_decay"))
        assert 0 < side * (moved - critical) < 0.012 * critical


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"profile": "tail"}, "equal size"),
        ({"optimizer": "descent"}, "gradient flow"),
        ({"schedule": "cosine"}, "constant"),
        ({"classes": 1000, "per_class": 50, "dim": 512}, "at most 200,000"),
    ],
)
def test_what_the_page_cannot_show_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        live_page(START.replaced(**change))


def test_large_starts_are_left_off_the_slider():
    assert classes_offered(START) == [2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 100]
    assert classes_offered(START.replaced(dim=512, classes=7)) == [2, 3, 4, 5, 6, 7]
    assert max(classes_offered(START.replaced(start="etf", dim=9))) == 10


def test_the_explorer_offers_it_where_it_can(browser, served):
    page = browser.new_page()
    page.goto(served)
    page.wait_for_function("window.explorer && explorer.answers > 0 && !explorer.busy")
    assert page.locator("#live").is_visible()
    with page.expect_download() as saved:
        page.click("#live")
    assert "unhinge.answer" not in saved.value.url
    with open(saved.value.path(), encoding="utf-8") as file:
        assert "live sliders" not in file.read(200)
    page.click("[data-view=sphere]")
    page.wait_for_function("explorer.view === 'sphere' && explorer.answers > 1 && !explorer.busy")
    assert not page.locator("#live").is_visible()
    page.close()


def test_the_command_writes_it(tmp_path):
    from typer.testing import CliRunner

    from unhinge.cli import app

    run = CliRunner().invoke(app, ["explore", "--export", str(tmp_path / "page.html")])
    assert run.exit_code == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == live_page(START)
    assert CliRunner().invoke(app, ["explore", "--export", str(tmp_path / "no" / "page.html")]).exit_code == 2
