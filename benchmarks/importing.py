"""Importing the package against importing torch: processor time of whole interpreters, the best of several.

    python benchmarks/importing.py [--json]

The tests hold the list of imported modules instead: a time depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

REPEATS = 5
CODES = {
    "import torch": "import torch",
    "unhinge.LayerPeeled": "import unhinge; unhinge.LayerPeeled",
    "unhinge.UnhingedLoss": "import unhinge; unhinge.UnhingedLoss",
    "import unhinge": "import unhinge",
}


def seconds(code: str) -> float:
    """Processor time of an interpreter that runs `code`."""
    spent = "import resource; print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))"
    runs = (
        subprocess.run([sys.executable, "-c", f"{code}; {spent}"], capture_output=True, text=True, check=True)
        for _ in range(REPEATS)
    )
    return min(float(run.stdout) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    found = {name: seconds(code) for name, code in CODES.items()}
    torch = found["import torch"]
    if as_json:
        print(json.dumps([{"what": name, "seconds": value, "ratio": value / torch} for name, value in found.items()]))
        return
    print("| what | seconds | times torch |\n| --- | --- | --- |")
    for name, value in found.items():
        print(f"| `{name}` | {value:.2f} | {value / torch:.2f} |")


if __name__ == "__main__":
    main()
