"""Two processes that share runs: launched once, for all recipes of a JSON list.

python shared.py FOLDER RECIPES.JSON

The process that writes prints the complaints and stops of each run as JSON, and leaves in FOLDER/patience.json how many
seconds it would wait for the other one in a step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: Path, recipes: Path) -> None:
    import torch

    from unhinge.data import load
    from unhinge.training import Material, Recipe, fit, processes

    torch.set_num_threads(1)
    workers = processes(2, "ddp", "cpu", "64-true")
    if workers.rank == 0:
        backend = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
        (folder / "patience.json").write_text(json.dumps([backend.options._timeout.total_seconds()]))
    splits = load("digits")
    few = Material(splits.training.subset(torch.arange(203)), splits.test.subset(torch.arange(60)), None)
    for name, settings in json.loads(recipes.read_text()).items():

        def interrupt(done: int, total: int, record: object, name: str = name) -> None:
            if name == "interrupted" and 2 * done >= total:
                raise InterruptedError

        recipe = Recipe.of(settings)
        try:
            run = fit(recipe, folder / name, material=few, processes=workers, progress=interrupt, save_every=0.0)
        except InterruptedError:
            run = fit(recipe, folder / name, material=few, processes=workers)
        if workers.rank == 0:
            print(json.dumps({"name": name, "stopped": run.stopped, "count": workers.count}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
