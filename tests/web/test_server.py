"""The server answers quickly, many at once, its own machine only, and never with a stack trace."""

from __future__ import annotations

import io
import json
import re
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from unhinge.web.app import VIEWS, make_app
from unhinge.web.serve import is_local
from unhinge.web.uploads import LARGEST_FILE

from web.folder_of_results import write_results  # isort: skip

ELSEWHERE = re.compile(
    r"""(?:src|href|action)\s*=\s*["']?\s*(?:https?:)?//|@import|url\(\s*["']?(?:https?:)?//""", re.IGNORECASE
)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    app = make_app(write_results(tmp_path_factory.mktemp("results")))
    return app.server.test_client()


def get(client, path, **options):
    return client.get(path, headers={"Host": "127.0.0.1:8765"} | options.pop("headers", {}), **options)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.key)
def test_an_answer_holds_all_panels_words_and_code(client, view):
    answer = get(client, f"/answer?view={view.key}").get_json()
    assert set(answer["figures"]) == {slot.key for slot in view.slots} == set(answer["code"])
    assert "headline" in answer["told"]
    for figure in answer["figures"].values():
        if "frames" in figure:
            assert len(figure["frames"]) > 10
        else:
            assert figure["layout"]["xaxis"]["title"]["text"]
            assert figure["layout"]["yaxis"]["title"]["text"]


@pytest.mark.parametrize(
    "query",
    [
        "gamma=abc",
        "view=nowhere",
        "classes=1e9",
        "classes=nan",
        "profile=own&counts=%00",
        "start=own&file=../../x",
        "lr=-1",
    ],
)
def test_a_bad_address_gives_a_message(client, query):
    response = get(client, "/answer?" + query)
    answer = response.get_json()
    assert response.status_code == 200
    assert answer["notice"] or answer.get("failed")
    assert "Traceback" not in response.text


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_no_query_breaks_the_server(text):
    from unhinge.web.app import answer_record

    record = answer_record("?profile=own&counts=2,3&dim=3&" + text, "light")
    json.dumps(record, allow_nan=False)


def test_the_page_and_its_policy_name_no_other_host(client):
    response = get(client, "/")
    assert not ELSEWHERE.search(response.text), ELSEWHERE.search(response.text)
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert get(client, "/plotly.js").mimetype == "text/javascript"


@pytest.mark.parametrize("query", ["view=free&gamma=0.3", "view=sphere", "view=noise&look=dark", "view=results"])
def test_an_export_is_one_file_that_asks_for_nothing(client, query):
    response = get(client, "/export?" + query)
    page = re.sub(r"<script>/\*\*.*?</script>", "", response.text, flags=re.DOTALL)  # Plotly's own text names its home
    assert response.status_code == 200
    assert not ELSEWHERE.search(page)
    assert "<script src" not in page
    assert "<link" not in page


def test_a_bad_export_is_refused_in_words(client):
    response = get(client, "/export?gamma=abc")
    assert response.status_code == 400
    assert "γ must be a number" in response.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "192.168.0.7:8765"])
def test_other_names_for_this_machine_are_refused(client, host):
    assert get(client, "/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "secret.txt",
        "../conftest.py",
        "%2e%2e/%2e%2e/etc/passwd",
        "quick/anchored-decay/nothing.png",
        ".git/config.json",
    ],
)
def test_only_files_of_results_are_handed_out(client, path):
    assert get(client, "/results/" + path).status_code == 404


def test_a_figure_is_handed_out(client):
    assert get(client, "/results/quick/anchored-decay/figure.png").mimetype == "image/png"


def test_results_show_the_paper_against_ours(tmp_path):
    from unhinge.web.view_results import body, find_items

    folder = write_results(tmp_path)
    assert [(item.name, item.kind) for item in find_items(folder)] == [
        ("quick/anchored-decay", "figure"),
        ("quick/long-tailed-cifar10", "study"),
        ("runs/digits", "run"),
    ]
    shown = json.dumps(
        body(folder, "quick/anchored-decay", "light").to_plotly_json(), default=lambda part: part.to_plotly_json()
    )
    for words in ("printed in the paper", "it holds", "1.25", "<angle>"):
        assert words in shown
    study = json.dumps(
        body(folder, "quick/long-tailed-cifar10", "light").to_plotly_json(), default=lambda part: part.to_plotly_json()
    )
    for words in ("67.81", "91.25 \\u00b1 0.5", "UL above CE", "undecided", "+1.25 points, p = 0.25", "1 of 2 runs"):
        assert words in study
    run = json.dumps(body(folder, "runs/digits", "light").to_plotly_json(), default=lambda part: part.to_plotly_json())
    assert "2 epochs; test accuracy 0.8000" in run
    nothing = json.dumps(
        body(tmp_path / "none", "", "light").to_plotly_json(), default=lambda part: part.to_plotly_json()
    )
    assert "Nothing to browse yet" in nothing


def test_damaged_results_are_passed_over(tmp_path):
    from unhinge.web.view_results import body, find_items

    folder = write_results(tmp_path)
    (folder / "quick" / "anchored-decay" / "data.csv").write_bytes(b"\xff\xfe\x00 nonsense")
    broken = folder / "broken"
    broken.mkdir()
    (broken / "recipe.json").write_text("{not json")
    (broken / "figure.png").write_bytes(b"")
    (folder / "quick" / "long-tailed-cifar10" / "table.csv").write_bytes(b"\xff\xfe\x00 nonsense")
    assert len(find_items(folder)) == 3
    body(folder, "quick/anchored-decay", "dark")
    body(folder, "quick/long-tailed-cifar10", "dark")


def upload(client, raw, **headers):
    return client.post("/upload", data=raw, headers={"Host": "127.0.0.1", "X-Unhinge": "1"} | headers)


def test_an_uploaded_start_is_solved(client):
    random = np.random.default_rng(0)
    buffer = io.BytesIO()
    np.savez(buffer, features=random.normal(size=(8, 3)), weight=random.normal(size=(4, 3)), labels=np.arange(8) % 4)
    name = upload(client, buffer.getvalue()).get_json()["name"]
    answer = get(client, f"/answer?view=free&start=own&file={name}").get_json()
    assert "figures" in answer
    assert answer["values"]["file"] == name


def test_a_bad_upload_is_refused_in_words(client):
    response = upload(client, b"PK nonsense")
    assert response.status_code == 400
    assert "npz" in response.get_json()["error"]


def test_an_upload_that_is_too_large_is_not_even_read(client):
    assert upload(client, b"0" * (LARGEST_FILE + 2**17)).status_code == 413


def test_other_pages_cannot_upload(client):
    assert client.post("/upload", data=b"", headers={"Host": "127.0.0.1"}).status_code == 403


def test_twenty_clients_moving_sliders_are_all_answered_and_small_files_get_through(served):
    """Each client sends its next move when the last one is answered, as the page does; none may starve."""
    moves = 5
    done = threading.Event()
    small: list[bytes] = []

    def move(which: int) -> int:
        for step in range(moves):
            query = f"view=free&classes={4 + which}&dim=16&gamma={0.01 * step + 0.0001 * which:.6f}"
            with urllib.request.urlopen(f"{served}answer?{query}") as response:
                assert "figures" in json.load(response)
        return moves

    def probe() -> None:
        while not done.is_set() or not small:
            small.append(urllib.request.urlopen(f"{served}assets/explorer.css").read())

    watcher = threading.Thread(target=probe)
    watcher.start()
    with ThreadPoolExecutor(20) as pool:
        answered = list(pool.map(move, range(20)))
    done.set()
    watcher.join()
    assert answered == [moves] * 20
    assert len(set(small)) == 1


def test_the_same_state_asked_by_many_is_solved_once():
    from unhinge.web.panels import Answer
    from unhinge.web.views import Kept

    solved: list[int] = []

    def slow(state):
        solved.append(1)
        time.sleep(0.2)
        return Answer("", "good", [], [], {})

    from unhinge.web.address import State

    kept, state = Kept(), State("free", ())
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: kept.answer(state, slow), range(8)))
    assert len(solved) == 1
    assert all(answer is answers[0] for answer in answers)


def test_a_failure_is_not_kept():
    from unhinge.web.address import State
    from unhinge.web.views import Kept

    def fail(state):
        raise ValueError("no")

    kept = Kept()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kept.answer(State("free", ()), fail)


def test_only_loopback_counts_as_this_machine():
    assert is_local("127.0.0.1")
    assert is_local("::1")
    assert is_local("localhost")
    assert not is_local("0.0.0.0")
    assert not is_local("192.168.1.5")
    assert not is_local("example.org")


@pytest.fixture
def command(monkeypatch):
    import typer

    from unhinge.cli import explore
    from unhinge.web.serve import Served

    monkeypatch.setattr(Served, "run", lambda self: self.server.server_close())
    app = typer.Typer()
    explore.add_to(app)
    return lambda *arguments: CliRunner().invoke(app, [*arguments])


def test_the_command_prints_an_address_on_this_machine(command):
    result = command("--no-browser", "--port", "0")
    assert result.exit_code == 0
    assert re.search(r"http://127\.0\.0\.1:\d+/", result.stdout)
    assert "warning" not in result.stderr


def test_the_command_warns_when_others_can_reach_the_page(command):
    result = command("--no-browser", "--port", "0", "--host", "0.0.0.0")
    assert "other machines can open it" in result.stderr


def test_a_taken_port_is_refused_in_words(command):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = command("--no-browser", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "Choose another port" in result.stderr
