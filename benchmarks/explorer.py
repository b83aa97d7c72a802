"""The explorer under load: waiting times of many clients at once, and the memory of the server.

    python benchmarks/explorer.py [--clients 20] [--requests 400] [--minutes M] [--json]

Each client moves a slider again as soon as the last move is answered, as the page does, so that no two requests are the
same; two in five requests ask for another view than the first. The server is a process of its own. `--requests 10000`
shows whether its memory stays flat. How far it is, is said on stderr.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SERVE = (
    "import sys; from unhinge.web.serve import serve; s = serve(port=0, token=None); print(s.url, flush=True); s.run()"
)


def megabytes(pid: int) -> float:
    """Resident memory of a process (Linux; elsewhere not a number)."""
    try:
        fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(float(line.split()[1]) / 1024 for line in fields if line.startswith("VmRSS"))


def queries(client: int, count: int) -> list[str]:
    """Moves of one client: ordinary values, none of them twice."""
    draw = random.Random(client)
    views = ("free", "free", "free", "sphere", "noise", "young")
    found = []
    for step in range(count):
        view = draw.choice(views)
        found.append(
            f"view={view}&classes={draw.randint(3, 40)}&dim={draw.randint(40, 128)}"
            f"&gamma={draw.uniform(0.001, 0.2):.6f}&seed={1000 * client + step}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--requests", type=int, default=400, help="of all clients together")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="at most, for all of them")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        failures: list[str] = []

        waited: dict[str, list[float]] = {}  # milliseconds, by view
        said = end = float("inf")  # no words and no end while the server warms up

        def work(client: int) -> list[float]:
            nonlocal said
            waits: list[float] = []
            for query in queries(client, max(1, asked.requests // asked.clients)):
                began = time.perf_counter()
                if began > end:
                    break
                if client == 0 and began - said > 10:
                    done, said = sum(map(len, waited.values())), began
                    print(f"{done:,} answers, {len(failures)} errors, {megabytes(server.pid):.0f} MB", file=sys.stderr)
                try:
                    with urllib.request.urlopen(f"{url}answer?{query}", timeout=120) as response:
                        record = json.load(response)
                    if record.get("failed"):
                        failures.append(f"{query}: {record['told']}")
                except OSError as error:
                    failures.append(f"{query}: {error}")
                waits.append(1000 * (time.perf_counter() - began))
                waited.setdefault(query.split("&")[0].removeprefix("view="), []).append(waits[-1])
            return waits

        for query in queries(asked.clients, 12):  # the first answers load what the views need
            urllib.request.urlopen(f"{url}answer?{query}", timeout=120).close()
        before = megabytes(server.pid)
        said = began = time.perf_counter()
        end = began + 60 * asked.minutes
        with ThreadPoolExecutor(asked.clients) as pool:
            waits = sorted(wait for mine in pool.map(work, range(asked.clients)) for wait in mine)
        spent, grown = time.perf_counter() - began, megabytes(server.pid)
        server.terminate()
    row = {
        "clients": asked.clients,
        "requests": len(waits),
        "errors": len(failures),
        "answers_per_second": round(len(waits) / spent, 1),
        "p50_ms": round(waits[len(waits) // 2]),
        "p95_ms": round(waits[int(0.95 * (len(waits) - 1))]),
        "megabytes_before": round(before),
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
