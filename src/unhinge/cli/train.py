"""`unhinge train`: a network, from a recipe to a folder."""

from __future__ import annotations

import signal
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unhinge.cli.output import examples, refuse, writable
from unhinge.extras import needed_for
from unhinge.results.json import JsonRecord, as_json

if TYPE_CHECKING:
    from unhinge.training import Recipe, Run
    from unhinge.training.parallel import Processes

__all__ = ["add_to"]

DATA, MODEL, LOSS, RUN = "What is learned", "The network", "The objective", "The run"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        epilog=examples(
            "unhinge train",
            "unhinge train --loss unhinged --head pal --radius 10",
            "unhinge train --recipe cifar10-lt100/pal --scale small --data-root data --out runs/pal",
        )
    )(train)


def train(
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Start from a named recipe, SETTING/METHOD such as cifar10-lt100/pal, or from a recipe.json.",
            rich_help_panel=RUN,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Scale of a named recipe: quick (digits), small, paper.", show_default="quick", rich_help_panel=RUN
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="digits and glyphs (embedded), cifar10, cifar100, cifar100-coarse, svhn, mnist, kmnist, "
            "fashion-mnist, imagenet100, patches, folder:PATH.",
            rich_help_panel=DATA,
        ),
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder with the data sets.", rich_help_panel=DATA)] = None,
    fonts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Font file or folder of fonts for glyphs; repeat it for several. A.ttf+B.ttf is one typeface in two "
            "files. Every fourth typeface, by name, is held out to test on.",
            show_default="the typefaces that come with matplotlib",
            rich_help_panel=DATA,
        ),
    ] = None,
    characters: Annotated[
        str | None,
        typer.Option(
            help="Characters for glyphs, such as 4E00-9FA5. By default all that the fonts share.", rich_help_panel=DATA
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(help="Side to which images of folder:PATH and imagenet100 are brought.", rich_help_panel=DATA),
    ] = None,
    shrink: Annotated[
        int | None, typer.Option(help="Average blocks of pixels: 2 makes 32 into 16.", rich_help_panel=DATA)
    ] = None,
    imbalance: Annotated[
        str | None,
        typer.Option(help="Ratio of the largest to the smallest class, as exp:100 or step:10.", rich_help_panel=DATA),
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(help="Training images of the largest class. By default all of them.", rich_help_panel=DATA),
    ] = None,
    label_noise: Annotated[
        float | None, typer.Option(help="Share of wrong training labels.", rich_help_panel=DATA)
    ] = None,
    augment: Annotated[
        bool | None, typer.Option(help="Shift and mirror training images.", rich_help_panel=DATA)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="convnet, glyphnet, resnet8, tiny-resnet, resnet20/32/56, resnet18/34/50, timm:NAME.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Channels of the first stage.", rich_help_panel=MODEL)] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="linear, pal (fixed simplex), fnpal (fixed simplex, normalized features), etf-init (starts as a "
            "simplex), many (trained, at a cost that does not grow with the number of classes).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    last_relu: Annotated[
        bool | None,
        typer.Option(help="Keep the ReLU before the head. By default not for pal and fnpal.", rich_help_panel=MODEL),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="ce, unhinged, adjusted, hinge, mse, ldam, taylor_softmax, z, spherical_softmax.", rich_help_panel=LOSS
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="Weight of the wrong logits (unhinged); 1/(C-1) by default.", rich_help_panel=LOSS),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Margin of the adjusted loss.", rich_help_panel=LOSS)] = None,
    class_weight: Annotated[
        str | None,
        typer.Option(
            help="Weigh a class of n images by n to the power of minus this: a number, sqrt (0.5, restores balance) or "
            "balanced (1).",
            rich_help_panel=LOSS,
        ),
    ] = None,
    logit_adjustment: Annotated[
        float | None,
        typer.Option(help="Add this times the log of the class frequencies to the logits (ce).", rich_help_panel=LOSS),
    ] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="For ce and unhinged.", rich_help_panel=LOSS)] = None,
    feature_penalty: Annotated[
        float | None,
        typer.Option(help="Strength of the sum of squared feature norms over the batch.", rich_help_panel=LOSS),
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option(help="Feature norm that the penalty aims at, instead of its strength.", rich_help_panel=LOSS),
    ] = None,
    weighted_penalty: Annotated[
        bool | None,
        typer.Option(
            "--weighted-penalty",  # without a --no- of its own, which no terminal of 80 columns has the room for
            help="Class weights on the penalty of a radius too, not on the loss alone.",
            rich_help_panel=LOSS,
        ),
    ] = None,
    rescale: Annotated[
        bool | None,
        typer.Option(help="Rescaled learning rate: feature gradients times |h| (fnpal).", rich_help_panel=LOSS),
    ] = None,
    head_rate: Annotated[
        float | None,
        typer.Option(help="Learning rate of the head many, in units of batch / features.", rich_help_panel=MODEL),
    ] = None,
    shortlist: Annotated[
        int | None,
        typer.Option(
            help="At half time the rows of the head many start anew from class means, and from then on a softmax "
            "over so many near classes decides.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.", rich_help_panel=RUN)] = None,
    batch: Annotated[int | None, typer.Option(help="Images per step, over all processes.", rich_help_panel=RUN)] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate at the start; it falls to zero as a cosine.", rich_help_panel=RUN),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of SGD.", rich_help_panel=RUN)] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of SGD.", rich_help_panel=RUN)] = None,
    warmup: Annotated[int | None, typer.Option(help="Epochs of linear warm-up.", rich_help_panel=RUN)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the start and of the batches.", rich_help_panel=RUN)] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of each process. Part of the recipe: another number gives other weights.",
            show_default="a continued run's own, else one per core, or one if there are several processes",
            rich_help_panel=RUN,
        ),
    ] = None,
    measure_every: Annotated[
        int | None, typer.Option(help="Epochs between measurements on the test images.", rich_help_panel=RUN)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run.", show_default="runs/KEY, by its recipe", rich_help_panel=RUN),
    ] = None,
    devices: Annotated[
        int, typer.Option(min=1, help="Processes or devices (Lightning Fabric).", rich_help_panel=RUN)
    ] = 1,
    strategy: Annotated[
        str, typer.Option(help="Strategy of Lightning Fabric: auto, ddp, ...", rich_help_panel=RUN)
    ] = "auto",
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=RUN)] = "auto",
    precision: Annotated[str, typer.Option(help="32-true, bf16-mixed, ...", rich_help_panel=RUN)] = "32-true",
    save_every: Annotated[
        float, typer.Option(min=0.0, help="Seconds between checkpoints within an epoch.", rich_help_panel=RUN)
    ] = 300.0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the recipe, its size and the estimated time, and exit.", rich_help_panel=RUN
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON value on stdout.", rich_help_panel=RUN)] = False,
) -> None:
    """Train a network: accuracy, norms, angles and neural collapse after every epoch, weights at the end.

    The same command after an interruption continues, to the same bits. The folder gets the recipe, log.jsonl, log.csv,
    figures, and the weights as last.safetensors and best.safetensors. The exit code is 1 if the run diverged (the loss
    stopped being finite, or became huge with the accuracy of guessing), 2 for a wrong argument.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    chosen = _recipe(given, recipe, scale)
    # By the recipe without its threads: the same command continues its run wherever it is given again.
    folder = out if out is not None else Path("runs") / replace(chosen, threads=1).key
    if threads is None and not (recipe or "").endswith(".json"):
        chosen = replace(chosen, threads=_threads(folder, devices))
    if dry_run:
        _print_plan(chosen, data_root, json)
        return
    with needed_for("training", extra="train"):  # all at once, before the first epoch
        import matplotlib  # noqa: F401
        import safetensors  # noqa: F401
        import sklearn  # noqa: F401
    folder = writable(folder)
    workers = _workers(devices, strategy, accelerator, precision)
    run = _fit(chosen, folder, data_root, json, save_every, workers)
    if workers.rank != 0:  # not the process that writes
        return
    _write_results(run)
    if json:
        record = {"folder": str(run.folder), "stopped": run.stopped}
        typer.echo(as_json(record | {"recipe": asdict(run.recipe), "records": run.records}))
    if run.stopped is not None:
        advice = "Lower --lr."
        if run.recipe.loss == "unhinged" and not run.recipe.fixed_prototypes:
            advice = (
                "The raw loss has no lower bound: fix the prototypes (--head pal with --radius, or --head fnpal), "
                "or lower --lr."
            )
        typer.echo(f"unhinge: stopped: {run.stopped}. All records up to there are in {run.folder}. {advice}", err=True)
        raise typer.Exit(1)
    if (words := _diverged(run)) is not None:
        typer.echo(f"unhinge: diverged: {words}", err=True)
        raise typer.Exit(1)


def _diverged(run: Run) -> str | None:
    """What to say of a run whose loss is finite and worth nothing: huge, with the accuracy of guessing."""
    loss, accuracy, images = run.last["train_loss"], run.last["train_accuracy"], "training"
    advice = "Fix the prototypes (--head pal with --radius, or --head fnpal), add --weight-decay, or lower --lr."
    if not isinstance(accuracy, float):  # the head many makes no logits in training
        accuracy, images = run.last["test_accuracy"], "test"
        advice = "Lower --head-rate or --lr."
    if not isinstance(loss, float) or abs(loss) < HUGE_LOSS or accuracy > GUESSING:
        return None
    return (
        f"the loss is {loss:.3g} and the {images} accuracy {accuracy:.2f}, which is guessing. The norms grew without "
        f"bound (mean feature norm {run.last['feature_norm']:.3g}). {advice}"
    )


def _recipe(given: JsonRecord, name: str | None, scale: str | None) -> Recipe:
    from unhinge.training import Recipe, RecipeError, recipe_named

    if scale is not None and (name is None or name.endswith(".json")):
        refuse("--scale is for a recipe by its name: give --recipe SETTING/METHOD too, or leave --scale out.")
    changes = {field.name: given[field.name] for field in fields(Recipe) if field.name in given}
    if "class_weight" in changes:
        changes["class_weight"] = _power(changes["class_weight"])
    if "fonts" in changes:
        from unhinge.data.glyphs import font_faces

        try:
            changes["fonts"] = tuple(face.entry for face in font_faces(changes["fonts"]))
        except ValueError as error:
            refuse(str(error))
    try:
        if name is None:
            return Recipe.of(changes)
        if name.endswith(".json"):
            try:
                start = Recipe.from_json(Path(name).read_text(encoding="utf-8"))
            except OSError as error:
                refuse(f"cannot read the recipe {name}: {error.strerror}.")
            except ValueError as error:
                refuse(f"cannot read the recipe {name}: {error}")
        else:
            start = recipe_named(name, scale or "quick")
        return replace(start, **changes)
    except RecipeError as error:
        refuse(str(error), *(field.name for field in fields(Recipe)))


def _power(text: str) -> float:
    """The power that ``--class-weight`` names, by the words that `class_weight` takes everywhere, or as a number."""
    from unhinge.theory.linear.spectrum import CLASS_WEIGHT_POWERS

    if text in CLASS_WEIGHT_POWERS:
        return CLASS_WEIGHT_POWERS[text]
    try:
        return float(text)
    except ValueError:
        names = " or ".join(CLASS_WEIGHT_POWERS)
        refuse(f"--class-weight takes a number such as 0.5, or {names}; got {text!r}.")


def _threads(folder: Path, devices: int) -> int:
    """Those of the run in the folder, to be continued; else as many as torch takes, or one for each of several."""
    import torch

    from unhinge.training import Recipe

    try:
        return Recipe.from_json((folder / "recipe.json").read_text(encoding="utf-8")).threads
    except (OSError, ValueError):  # no run yet; what is damaged, `fit` will say
        return torch.get_num_threads() if devices == 1 else 1


def _workers(devices: int, strategy: str, accelerator: str, precision: str) -> Processes:
    from unhinge.training import processes

    try:
        return processes(devices, strategy, accelerator, precision)
    except ConnectionError as error:
        typer.echo(f"unhinge: {error}", err=True)
        raise typer.Exit(1) from None
    except (ImportError, ValueError, RuntimeError) as error:
        refuse(str(error))


def _fit(
    chosen: Recipe, folder: Path, data_root: Path | None, quiet: bool, save_every: float, workers: Processes
) -> Run:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from unhinge.training import fit
    from unhinge.training.loop import Interrupted
    from unhinge.training.parallel import first_words

    console = Console(stderr=True, quiet=workers.rank != 0)
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    hidden = workers.rank != 0 or not console.is_terminal  # where it is no terminal, a bar leaves an empty line
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None, epoch="1", rate="")
        headed = False

        def show(done: int, total: int, record: dict[str, object] | None) -> None:
            nonlocal headed
            speed = bar.tasks[0].speed
            rate = f"{speed * chosen.batch:,.0f} images/s" if speed else ""
            epoch = f"{min(done * chosen.epochs // total + 1, chosen.epochs)}"
            bar.update(task, completed=done, total=total, rate=rate, epoch=epoch)
            if record is not None and not quiet:
                if not headed:
                    headed = True
                    bar.console.print(_data_words(folder), highlight=False)
                    bar.console.print(MEANING, highlight=False)
                    bar.console.print(_row({key: key for key in SHOWN}), style="bold", highlight=False)
                bar.console.print(_row(record), highlight=False)

        asked: list[int] = []  # signals: the loop saves between two steps, never within one
        before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
        try:
            run = fit(
                chosen,
                folder,
                data_root=data_root,
                processes=workers,
                progress=show,
                save_every=save_every,
                tensorboard=True,
                interrupted=lambda: bool(asked),
            )
        except Interrupted as ended:
            typer.echo(f"unhinge: asked to end; {ended}. The same command continues.", err=True)
            raise typer.Exit(128 + signal.SIGTERM) from None
        except KeyboardInterrupt:
            typer.echo("unhinge: interrupted. The same command continues from its last checkpoint.", err=True)
            raise typer.Exit(128 + signal.SIGINT) from None
        except RuntimeError as error:
            if workers.count == 1:
                raise
            words = f"another process of this run is gone ({first_words(error)})"
            typer.echo(f"unhinge: {words}. Run it again to continue.", err=True)
            raise typer.Exit(1) from None
        except OSError as error:  # the disk, not the arguments
            typer.echo(f"unhinge: {error}", err=True)
            raise typer.Exit(1) from None
        except ValueError as error:
            refuse(str(error), "image_size")
        finally:
            signal.signal(signal.SIGTERM, before)
    for words in (*run.warnings, *run.complaints):
        typer.echo(f"unhinge: {words}", err=True)
    return run


HUGE_LOSS = 1e4  # no loss of a useful run is as large
GUESSING = 0.25  # at most: the accuracy of a network of ten classes or more that only guesses, with room for chance
SHOWN = {
    "epoch": "epoch",
    "train_loss": "loss",
    "train_accuracy": "train acc",
    "test_accuracy": "test acc",
    "feature_norm": "|h|",
    "prototype_angle_min": "angle °",
    "nc1_ratio": "NC1",
    "nc3": "NC3",
}
MEANING = (
    "train acc: during the epoch, of images as they were shown. |h|: mean norm of the features. Angle: the smallest "
    "between two prototypes. NC1, NC3: 0 at neural collapse."
)


def _row(record: dict[str, object]) -> str:
    cells = []
    for key, head in SHOWN.items():
        value = record.get(key, "")
        text = head if value == key else f"{value:.4g}" if isinstance(value, float) else str(value)
        cells.append(f"{text:>9}")
    return " ".join(cells)


def _write_results(run: Run) -> None:
    from unhinge.results.look import save
    from unhinge.results.sealed import write_atomically
    from unhinge.results.tables import as_markdown
    from unhinge.training.comparing import method_of
    from unhinge.training.plots import draw_curves

    title = f"{run.recipe.data}: {method_of(run.recipe)}, seed {run.recipe.seed}"
    save(draw_curves(run.records, title), run.folder, "curves")
    write_atomically(run.folder / "log.md", (as_markdown(run.records) + "\n").encode())
    if run.stopped is None:
        typer.echo(f"test accuracy {run.last['test_accuracy']:.4f}  ·  {run.folder}/", err=True)


def _print_plan(chosen: Recipe, data_root: Path | None, json: bool) -> None:
    from unhinge.training import processes
    from unhinge.training.plan import plan_of

    try:
        plan = plan_of(chosen, data_root, processes().device)
    except (ValueError, OSError) as error:
        refuse(str(error), "image_size")
    if json:
        typer.echo(as_json({"recipe": asdict(chosen), "plan": asdict(plan)}))
        return
    typer.echo(chosen.to_json())
    typer.echo(str(plan))
    if not plan.data_found:
        typer.echo(
            f"unhinge: {chosen.data} is not here, so these numbers are for its published size. "
            f"`unhinge data {chosen.data}` says where its files go.",
            err=True,
        )


def _data_words(folder: Path) -> str:
    from unhinge.training.records import read_data

    about = read_data(folder)
    if about is None:
        return ""
    counts = about["counts"]
    each = f"{min(counts):,} to {max(counts):,}" if min(counts) < max(counts) else f"{counts[0]:,}"
    return (
        f"{about['train_images']:,} images to train on, {each} of each of {len(counts):,} classes; "
        f"{about['test_images']:,} images to test on."
    )
