"""A folder as `unhinge reproduce` and `unhinge train` write it, in miniature."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from unhinge.results.sealed import seal

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def write_results(folder: Path) -> Path:
    figure = folder / "quick" / "anchored-decay"
    figure.mkdir(parents=True)
    (figure / "figure.png").write_bytes(PIXEL)
    rows = ["panel,series,kind,step,value,error", *(f"loss,lambda=0,exact,{k},{1.5 - k},".strip() for k in range(4))]
    (figure / "data.csv").write_text("\n".join(rows) + "\n")
    recipe = {
        "id": "anchored-decay",
        "label": "pal-toy",
        "claim": "A claim with <angle> brackets",
        "errata": [1],
        "footnote": "a footnote",
        "scale": {"num_classes": 10, "per_class": 5, "dim": 32},
        "seed": 0,
        "checks": [{"statement": "it holds", "holds": True, "number": "1.25"}],
        "command": "unhinge reproduce anchored-decay",
    }
    (figure / "recipe.json").write_text(json.dumps(recipe))
    study = folder / "quick" / "long-tailed-cifar10"
    study.mkdir(parents=True)
    (study / "figure.png").write_bytes(PIXEL)
    header = "row,column,quantity,paper,ours,standard_deviation,seeds,scale"
    (study / "table.csv").write_text(f"{header}\nCE,ρ=100,accuracy,67.81,91.25,0.5,2,quick\n", encoding="utf-8")
    ordering = {"statement": "UL above CE", "claimed_by": "the paper", "column": "ρ=100", "verdict": "undecided"}
    about = {"id": "long-tailed-cifar10", "label": "tab:lt-cifar", "claim": "A table", "scale": "quick"}
    about |= {"runs": 1, "runs_wanted": 2, "orderings": [ordering | {"text": "+1.25 points, 2 seeds"}]}
    (study / "recipe.json").write_text(json.dumps(about))
    run = folder / "runs" / "digits"
    run.mkdir(parents=True)
    (run / "recipe.json").write_text(json.dumps({"data": "digits", "loss": "unhinged", "epochs": 2}))
    records = [{"epoch": k, "train_loss": 2.0 / k, "test_accuracy": 0.4 * k} for k in (1, 2)]
    (run / "log.jsonl").write_text("\n".join(map(seal, records)) + '\n{"epoch": 3, "trai')
    (folder / "secret.txt").write_text("not a result")
    return folder
