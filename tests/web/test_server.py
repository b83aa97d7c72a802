"""The server answers quickly, many at once, its own machine only, and never with a stack trace."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner
from werkzeug.exceptions import NotFound

from unhinge.web.app import SORRY, VIEWS, all_controls, answer_text, make_app
from unhinge.web.cache import SizedCache
from unhinge.web.controls import written
from unhinge.web.serve import is_local, serve
from unhinge.web.uploads import LARGEST_FILE
from unhinge.web.view_results import send

from web.folder_of_results import write_results  # isort: skip
from web.strategies_web import SMALL, value_of  # isort: skip

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
    picture = get(client, f"/picture?view={view.key}").get_json()
    assert set(picture["figures"]) == set(picture["code"]) == ({"moving"} if view.picture else set())
    assert set(answer["figures"]) == set(answer["code"]) == {slot.key for slot in view.slots} - set(picture["figures"])
    assert "headline" in answer["told"]
    for figure in answer["figures"].values():
        assert figure["layout"]["xaxis"]["title"]["text"]
        assert figure["layout"]["yaxis"]["title"]["text"]
    for figure in picture["figures"].values():
        assert len(figure["frames"]) > 10


def test_a_picture_of_what_cannot_be_solved_is_refused_as_its_curves_are(client):
    wrong = "view=sphere&optimizer=descent&schedule=cosine&length=1000000"
    answer, picture = (get(client, f"/{what}?{wrong}").get_json() for what in ("answer", "picture"))
    assert picture["failed"]
    assert picture["told"] == answer["told"]


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
    record = json.loads(answer_text("?profile=own&counts=2,3&dim=3&" + text, "light"))
    json.dumps(record, allow_nan=False)


def test_the_page_and_its_policy_name_no_other_host(client):
    response = get(client, "/")
    assert not ELSEWHERE.search(response.text), ELSEWHERE.search(response.text)
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert get(client, "/plotly.js").mimetype == "text/javascript"


@pytest.mark.parametrize(
    "query", ["view=free&gamma=0.3", "view=sphere", "view=noise&look=dark", "view=young", "view=results"]
)
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


def test_a_link_that_leaves_the_results_is_not_followed(tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    results = tmp_path / "results"
    results.mkdir()
    (results / "link.png").symlink_to(secret)
    with pytest.raises(NotFound):
        send(results, "link.png")


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
    for words in ("67.81", "91.25 \\u00b1 0.5", "UL above CE", "undecided", "+1.25 points, 2 seeds", "1 of 2 runs"):
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


def test_the_same_thing_asked_by_many_is_made_once():
    made: list[int] = []
    go = threading.Event()

    def slow() -> bytes:
        made.append(1)
        go.wait()
        return b"answer"

    kept: SizedCache[str, bytes] = SizedCache(100, len)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(kept.get, "state", slow) for _ in range(8)]
        while not made:
            pass
        go.set()
    assert len(made) == 1
    assert {one.result() for one in asked} == {b"answer"}


def test_a_failure_is_not_kept():
    def fail() -> bytes:
        raise ValueError("no")

    kept: SizedCache[str, bytes] = SizedCache(100, len)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kept.get("state", fail)
    assert kept.get("state", lambda: b"yes") == b"yes"


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=40))
def test_what_is_kept_never_takes_more_than_its_limit(pairs):
    kept: SizedCache[int, bytes] = SizedCache(60, len)
    for key, size in pairs:
        kept.put(key, bytes(size))
        assert kept.bytes <= 60
    here = [actual for key in range(10) if (actual := kept.find(key)) is not None]
    assert sum(map(len, here)) == kept.bytes
    if pairs:
        assert len(kept.find(pairs[-1][0]) or b"") == pairs[-1][1]


# The sizes stay small, so that a test answers in a second; everything else takes any value that its control allows.
SIZES = {key: SMALL[key] for key in ("classes", "per_class", "dim", "counts", "length", "file", "ratio")}
WHICH = st.sampled_from([view.key for view in VIEWS])


@settings(max_examples=60, phases=(Phase.explicit, Phase.generate))
@example("?view=sphere&feature_decay=1")
@example("?view=sphere&feature_decay=1000&lr=100000000&norm=0.001&horizon=20000")
@example("?view=free&optimizer=descent&lr=10000&feature_decay=1000&weight_decay=1000")
@example("?view=free&gamma=1000&s=10000&lr=10000&horizon=1000000000")
@example("?view=noise&noise=0.5&power=2&lr=10000&horizon=1000000000")
@example("?view=young&classes=4&per_class=3&dim=4&lr=10000&temperature=0.001&scale=10&horizon=100000")
@example("?view=young&classes=4&per_class=3&dim=4&feature_decay=1000&weight_decay=1000&smoothing=0.99&adjustment=-4")
@example("?view=young&classes=2&per_class=1&dim=1&scale=0.000001&temperature=1000&tolerance=10")
@given(
    WHICH.flatmap(
        lambda view: st.tuples(
            st.just(view),
            st.fixed_dictionaries({c.key: SIZES.get(c.key, value_of(c)) for c in all_controls()[view]}),
        )
    ).map(lambda pair: "?" + urlencode({"view": pair[0]} | {key: written(value) for key, value in pair[1].items()}))
)
def test_every_address_that_the_page_can_send_is_answered_or_refused_in_words(search):
    """Never a failure of the explorer itself, and never a number that JSON does not have."""
    record = json.loads(answer_text(search, "light"), parse_constant=pytest.fail)
    assert SORRY not in record["told"]
    assert record.get("failed") or record["figures"]
    picture = json.loads(answer_text(search, "light", picture=True), parse_constant=pytest.fail)
    assert SORRY not in picture.get("told", "")
    assert bool(picture.get("failed")) <= bool(record.get("failed"))  # what has curves has a picture


def test_a_page_with_a_token_is_closed_to_those_without():
    client = make_app(token="secret").server.test_client()
    local = {"Host": "127.0.0.1"}
    for address in (
        "/",
        "/answer?view=free",
        "/picture?view=free",
        "/assets/explorer.css",
        "/?token=wrong",
        "/answer?token=",
    ):
        assert client.get(address, headers=local).status_code == 403
    assert client.post("/upload", data=b"", headers=local | {"X-Unhinge": "1"}).status_code == 403
    opened = client.get("/?token=secret&view=sphere&classes=7", headers=local)
    assert opened.status_code == 302
    assert opened.headers["Location"] == "/?view=sphere&classes=7"
    assert "HttpOnly" in opened.headers["Set-Cookie"]
    assert client.get("/", headers=local).status_code == 200  # by the cookie


def test_an_upload_that_never_comes_is_given_up(monkeypatch, tmp_path):
    """The connection ends although the client says nothing more: with a deadline of no time at all, at once."""
    monkeypatch.setattr("unhinge.web.app.LONGEST_UPLOAD", 0.0)
    running = serve(port=0, results=tmp_path)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    with socket.create_connection(("127.0.0.1", running.server.server_port)) as wire:
        wire.sendall(b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Unhinge: 1\r\nContent-Length: 1000\r\n\r\nabc")
        assert b" 400 " in wire.makefile("rb").readline()
    running.stop()
    thread.join()


def test_a_head_that_never_ends_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr("unhinge.web.serve.LONGEST_HEAD", 0.0)
    running = serve(port=0, results=tmp_path)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    with socket.create_connection(("127.0.0.1", running.server.server_port)) as wire:
        wire.sendall(b"GET / HTT")
        assert wire.makefile("rb").read() == b""
    running.stop()
    thread.join()


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
    from unhinge.web.serve import Server

    monkeypatch.setattr(Server, "run", lambda self: self.server.server_close())
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
    assert "other machines can reach it" in result.stderr


def test_a_taken_port_is_refused_in_words(command):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = command("--no-browser", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "Choose another port" in result.stderr


def test_the_command_asks_for_a_token_unless_told_not_to(command):
    assert re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{16,}", command("--no-browser", "--port", "0").stdout)
    assert "token" not in command("--no-browser", "--port", "0", "--no-token").stdout


def test_a_folder_of_results_that_is_not_there_is_refused(command, tmp_path):
    result = command("--no-browser", "--port", "0", "--results", str(tmp_path / "none"))
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr


def test_a_changed_digit_in_the_log_of_a_run_is_told_and_not_drawn(tmp_path):
    from unhinge.web.view_results import body

    folder = write_results(tmp_path)
    log = folder / "runs" / "digits" / "log.jsonl"
    shown = str(body(folder, "runs/digits", "light"))
    assert "2 epochs" in shown
    assert "Line 3 of log.jsonl is cut off" in shown
    log.write_text(log.read_text().replace('"test_accuracy": 0.8', '"test_accuracy": 0.9'))
    shown = str(body(folder, "runs/digits", "light"))
    assert "Line 2 of log.jsonl was changed after it was written" in shown
    assert "1 epochs" in shown
    assert "0.9" not in shown.replace("0.9rem", "")
