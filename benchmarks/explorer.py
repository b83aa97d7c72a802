"""The explorer under load: waiting times of many clients at once, and the memory of the server.

    python benchmarks/explorer.py [--clients 20] [--requests 400] [--json]

Each client moves a slider again as soon as the last move is answered, as the page does, so that no two requests are the
same; one in five requests asks for another view. The server is a process of its own. `--requests 10000` shows whether
its memory stays flat.
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
    found = []
    for step in range(count):
        view = draw.choice(("free", "free", "free", "sphere", "noise"))
        found.append(
            f"view={view}&classes={draw.randint(3, 40)}&dim={draw.randint(40, 128)}"
            f"&gamma={draw.uniform(0.001, 0.2):.6f}&seed={1000 * client + step}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--requests", type=int, default=400, help="of all clients together")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        failures: list[str] = []

        def work(client: int) -> list[float]:
            waits = []
            for query in queries(client, max(1, asked.requests // asked.clients)):
                began = time.perf_counter()
                try:
                    with urllib.request.urlopen(f"{url}answer?{query}", timeout=120) as response:
                        record = json.load(response)
                    if record.get("failed"):
                        failures.append(f"{query}: {record['told']}")
                except OSError as error:
                    failures.append(f"{query}: {error}")
                waits.append(1000 * (time.perf_counter() - began))
            return waits

        work(asked.clients)  # the first answers load what the views need
        before = megabytes(server.pid)
        began = time.perf_counter()
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
    }
    if asked.json:
        print(json.dumps(row))
    else:
        print("| " + " | ".join(row) + " |\n|" + " --- |" * len(row))
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    for failure in failures[:5]:
        print(failure, file=sys.stderr)


if __name__ == "__main__":
    main()
