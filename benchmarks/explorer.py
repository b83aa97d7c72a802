"""The explorer under load: waiting times of many clients at once, and the memory of the server.

    python benchmarks/explorer.py [--clients 20] [--requests 400] [--random 0.1] [--rest 0.1] [--processes 2]
                                  [--minutes M] [--json]

Each client moves a slider again as soon as the last move is answered, as the page does, so that no two requests are the
same; half of the requests ask for another view than the first. One in ten sets every control of its view to a random
value of its slider; the others are ordinary. After one move in ten the slider rests, and the page asks for the moving
picture as well; its waiting times are counted apart. An error is an answer that is none, that the page cannot read, or,
of an ordinary request, a refusal. Answers are written down and read only at the end: the clients share the cores with
the server, and the less they do meanwhile, the more is measured of the server. The server is what `unhinge explore`
starts: a process and a helper. Processor time and memory are those of both; `--processes 1` leaves the helper out.
`--requests 10000` shows whether the memory stays flat. How far it is, is said on stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from unhinge.web.app import SORRY, VIEWS, all_controls
from unhinge.web.controls import Control

PICTURES = {view.key for view in VIEWS if view.picture is not None}
EARLY = 1000  # answers after which the memory is looked at for the first time
SERVE = """
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in its background ignore it
from unhinge.web.serve import serve
from unhinge.web.app import LANES

server = serve(port=0, token=None)
started = LANES.start_helper() if {helper} else None
if started is not None:
    started.result()
print(server.url, flush=True)
try:
    server.run()
except KeyboardInterrupt:
    pass
"""


def family(pid: int) -> list[Path]:
    """What Linux knows about a process and those that it has started; nothing elsewhere."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [Path(f"/proc/{each}") for each in (pid, *(int(child) for task in tasks for child in read(task).split()))]


def read(path: Path) -> str:
    """A file of /proc; nothing of a thread, or a process, that has ended meanwhile."""
    try:
        return path.read_text()
    except OSError:
        return ""


def megabytes(pid: int) -> float:
    """Resident memory of a process and of those that it has started (Linux; elsewhere not a number)."""
    lines = [line for each in family(pid) for line in read(each / "status").splitlines()]
    return sum(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")) or math.nan


def seconds(pid: int) -> float:
    """Processor time of them so far (Linux; elsewhere not a number)."""
    fields = [read(each / "stat").rpartition(")")[2].split() for each in family(pid)]
    return sum(int(each[11]) + int(each[12]) for each in fields if each) / os.sysconf("SC_CLK_TCK") or math.nan


def queries(client: int, count: int, share: float = 0.0) -> list[str]:
    """Moves of one client, none of them twice: ordinary values, and of that share random ones of every control."""
    draw, other = random.Random(client), random.Random(f"random {client}")
    views = ("free", "free", "free", "sphere", "noise", "young")
    found = []
    for step in range(count):
        view, seed = draw.choice(views), 1000 * client + step
        sizes = f"classes={draw.randint(3, 40)}&dim={draw.randint(40, 128)}"
        gamma = "" if view == "young" else f"&gamma={draw.uniform(0.001, 0.2):.6f}"
        if other.random() < share:
            drawn = {control.key: any_value(control, other) for control in all_controls()[view]}
            found.append(urlencode({"view": view} | drawn | {"seed": seed}))
        else:
            found.append(f"view={view}&{sizes}{gamma}&seed={seed}")
    return found


def any_value(control: Control, draw: random.Random) -> str:
    """A value that the control's slider can have; empty where the theory may choose, now and then."""
    if control.kind == "choice":
        return draw.choice(control.choices)[0]
    if control.kind == "text" or (control.default is None and draw.random() < 0.5):
        return str(control.default or "")
    low, high = control.slide
    if control.zero and draw.random() < 0.5:
        return "0"
    value = low * (high / low) ** draw.random() if control.log else draw.uniform(low, high)
    return f"{round(value)}" if control.kind == "count" else f"{value:.6g}"


def fetch(connection: HTTPConnection, query: str, what: str = "answer") -> bytes:
    """What the server answers to a query; an error if that is not what was asked for."""
    try:
        connection.request("GET", f"/{what}?{query}")
        response = connection.getresponse()
        body = response.read()
    except BaseException:
        connection.close()  # it opens itself again for the next query
        raise
    if response.status != 200:
        raise HTTPException(f"status {response.status}")
    return body


def refused(constant: str) -> None:
    """For what JSON does not have, and a browser does not read."""
    raise ValueError(f"the answer holds {constant}")


def failed(path: Path) -> list[str]:
    """The answers of one client that are none."""
    found = []
    with path.open(encoding="utf-8") as lines:
        for query, body in zip(lines, lines, strict=True):
            try:
                record = json.loads(body, parse_constant=refused)
            except ValueError as error:
                found.append(f"{query.strip()}: {error}")
                continue
            if record.get("failed") and (query.count("&") < 5 or SORRY in record["told"]):
                found.append(f"{query.strip()}: {record['told']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--requests", type=int, default=400, help="of all clients together")
    parser.add_argument("--random", type=float, default=0.1, help="share of requests that set every control")
    parser.add_argument("--rest", type=float, default=0.1, help="share of moves after which a picture is asked for")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2, help="that compute answers at first")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="at most, for all of them")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    serve = SERVE.format(helper=asked.processes == 2)
    with (
        tempfile.TemporaryDirectory() as keep,
        subprocess.Popen([sys.executable, "-c", serve], stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        failures: list[str] = []
        answers: list[Path] = []  # of each client: queries and what came, in turns
        folder = Path(keep)

        waited: dict[str, list[float]] = {}  # milliseconds, by view
        said = end = float("inf")  # no words and no end while the server warms up
        early = float("nan")  # megabytes after the first answers

        def work(client: int) -> list[float]:
            nonlocal said, early
            waits: list[float] = []
            rests = random.Random(f"rests {client}")
            connection = HTTPConnection(urlsplit(url).netloc, timeout=120)  # one for all, as a browser has it
            answers.append(folder / f"{client}")
            with answers[-1].open("wb") as written:
                for query in queries(client, max(1, asked.requests // asked.clients), asked.random):
                    began = time.perf_counter()
                    if began > end:
                        break
                    if client == 0 and began - said > 10:
                        done, said = sum(map(len, waited.values())), began
                        if done >= EARLY and math.isnan(early):
                            early = megabytes(server.pid)
                        print(f"{done:,} answers, {megabytes(server.pid):.0f} MB", file=sys.stderr)
                    view = query.split("&")[0].removeprefix("view=")
                    rest = rests.random() < asked.rest and view in PICTURES
                    for what in ("answer", "picture") if rest else ("answer",):
                        began = time.perf_counter()
                        try:
                            body = fetch(connection, query, what)
                            written.write(query.encode() + b"\n" + body.replace(b"\n", b" ") + b"\n")
                        except (OSError, HTTPException) as error:
                            failures.append(f"{what} of {query}: {error}")
                        wait = 1000 * (time.perf_counter() - began)
                        waited.setdefault(view if what == "answer" else "pictures", []).append(wait)
                        if what == "answer":
                            waits.append(wait)
            connection.close()
            return waits

        first = HTTPConnection(urlsplit(url).netloc, timeout=120)
        for query in queries(asked.clients, 24):  # the first answers load what the views need, in each process
            fetch(first, query)
        before = megabytes(server.pid)
        spent_before = seconds(server.pid)
        said = began = time.perf_counter()
        end = began + 60 * asked.minutes
        with ThreadPoolExecutor(asked.clients) as pool:
            waits = sorted(wait for mine in pool.map(work, range(asked.clients)) for wait in mine)
        spent, grown = time.perf_counter() - began, megabytes(server.pid)
        processor = seconds(server.pid) - spent_before
        server.send_signal(signal.SIGINT)  # as Ctrl-C, after which nothing is left running
        failures += [failure for path in answers for failure in failed(path)]
    row = {
        "clients": asked.clients,
        "processes": asked.processes,
        "requests": len(waits),
        "errors": len(failures),
        "answers_per_second": round(len(waits) / spent, 1),
        "p50_ms": round(waits[len(waits) // 2]),
        "p95_ms": round(waits[int(0.95 * (len(waits) - 1))]),
        "processor_ms": round(1000 * processor / len(waits)),
        "megabytes_before": round(before),
        f"megabytes_{EARLY}": early if math.isnan(early) else round(early),
        "megabytes_after": round(grown),
    } | {f"p95_ms_{view}": round(sorted(mine)[int(0.95 * (len(mine) - 1))]) for view, mine in sorted(waited.items())}
    if asked.json:
        print(json.dumps(row))
    else:
        print("| " + " | ".join(row) + " |\n|" + " --- |" * len(row))
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    for failure in failures[:5]:
        print(failure, file=sys.stderr)


if __name__ == "__main__":
    main()
