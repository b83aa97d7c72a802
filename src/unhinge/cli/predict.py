"""`unhinge predict`: what training will do to your own features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unhinge.cli.output import examples, progress_bar, refuse, writable
from unhinge.results.json import as_json

if TYPE_CHECKING:
    from unhinge.prediction import Measured, Prediction, Recommendation

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        epilog=examples(
            "unhinge predict features.npz",
            "unhinge predict features.npz --weight-decay 5e-4 --lr 0.05 --out prediction",
            "unhinge predict features.safetensors --json",
        )
    )(predict)


def predict(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FEATURES",
            help="An .npz, .safetensors or .pt with features (n, p), labels (n,), and if you like weight (C, p) and "
            "bias (C,). Or an .npy with labels.npy beside it, or a .csv with a column called label. Or Parquet: a "
            "file, a folder, an address such as s3://bucket/folder.",
        ),
    ],
    gamma: Annotated[
        float | None, typer.Option(help="Weight of the other logits.", show_default="1/(C-1), the fastest")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate of features and head; the recommendation keeps it if it is given.", show_default="0.1"
        ),
    ] = None,
    feature_decay: Annotated[float, typer.Option(help="Decay of the features.")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="Decay of the head.")] = 0.0,
    distance: Annotated[
        float, typer.Option(help="How near to the final direction counts as collapsed, between 0 and 2.")
    ] = 0.1,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Examples per step, for the epochs.", show_default="all of them")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figure, the page and the numbers.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")] = False,
    features: Annotated[str, typer.Option(help="Parquet: the column of the features, lists of numbers.")] = "features",
    label: Annotated[str, typer.Option(help="Parquet: the column of the labels.")] = "label",
    classes: Annotated[
        int | None, typer.Option(min=2, help="Parquet: number of classes.", show_default="largest label plus one")
    ] = None,
    engine: Annotated[str, typer.Option(help="Parquet: who reads: local, dask or ray.")] = "local",
    workers: Annotated[int, typer.Option(min=1, help="Parquet: processes, or tasks at a time on a cluster.")] = 1,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Parquet: leave rows out that cannot be used, and count them.")
    ] = False,
) -> None:
    """Predict what training does to given features: limit, rate, time to collapse, critical decay, imbalance, gamma.

    Every answer is exact for free features under the unhinged loss. With --out a one-page report.html, the figure as
    PNG and PDF, and prediction.json are written; otherwise nothing is. The exit code is 2 for a file or an argument
    that cannot be used. Parquet files are read in parts; with --out, the same command goes on after an interruption.
    """
    from unhinge.prediction import predict as ask
    from unhinge.prediction import recommend
    from unhinge.streams.rows import LEAVE_OUT

    options = {"features": features, "label": label, "engine": engine, "workers": workers}
    if not _is_parquet(file):
        _refuse_parquet_options(file, options | {"classes": classes, "skip-bad": skip_bad})
    folder = None if out is None else writable(out)
    try:
        prediction = ask(
            _read_parquet(file, classes, options, folder, skip_bad) if _is_parquet(file) else file,
            gamma=gamma,
            lr=0.1 if lr is None else lr,
            feature_decay=feature_decay,
            weight_decay=weight_decay,
            distance=distance,
        )
        advice = recommend(prediction, distance=distance, lr=lr, batch=batch)
    except (ValueError, MemoryError) as error:
        told = " ".join(str(error).split()) or "there is not enough memory for this file."
        told = told.replace(LEAVE_OUT, "--skip-bad")
        refuse(told, "gamma", "lr", "feature_decay", "weight_decay", "distance")
    page = None
    if folder is not None:
        from unhinge.prediction.report import write_report

        page = write_report(prediction, advice, folder, f"What training will do to {Path(file).name}")
    if json:
        record = {"file": str(file), **prediction.as_dict(), "recommendation": advice.as_dict()}
        typer.echo(as_json(record))
        return
    _print(prediction, advice)
    if page is not None:
        typer.echo(f"Report: {page}  ·  figure: {page.parent}/prediction.png, .pdf  ·  numbers: prediction.json")


def _is_parquet(source: str) -> bool:
    """Whether a source is read as Parquet: by its suffix, or because it is a folder or an address.

    Example:
        >>> [
        ...     _is_parquet(name)
        ...     for name in ("features.parquet", "s3://bucket/features", "features.npz")
        ... ]
        [True, True, False]
    """
    return source.rstrip("/").lower().endswith((".parquet", ".pq")) or "://" in source or Path(source).is_dir()


def _refuse_parquet_options(file: str, given: Mapping[str, object]) -> None:
    """Refuse what would have no effect on a file of another kind."""
    usual = {"features": "features", "label": "label", "classes": None, "engine": "local", "workers": 1}
    usual["skip-bad"] = False
    for name, value in given.items():
        if value != usual[name]:
            refuse(f"--{name} is for Parquet, but {file} is none. Leave --{name} out.")


def _read_parquet(
    source: str, classes: int | None, options: Mapping[str, Any], folder: Path | None, skip_bad: bool
) -> Measured:
    from unhinge.prediction.measured import measure_summary
    from unhinge.streams.parquet import collapse_of_parquet
    from unhinge.streams.rows import BadRows

    bad = BadRows() if skip_bad else None
    kept = None if folder is None else folder / "pass"
    with progress_bar("reading") as tell:
        summary = collapse_of_parquet(source, num_classes=classes, **options, resume=kept, bad=bad, progress=tell)
        found = measure_summary(summary)
    if bad is not None and bad.total:
        typer.echo(f"unhinge: {bad.total:,} rows were left out ({bad.kinds}). The first: {bad.places[0]}.", err=True)
    return found


def _print(prediction: Prediction, advice: Recommendation) -> None:
    from rich.console import Console
    from rich.table import Table

    from unhinge.prediction.report import collapse_rows
    from unhinge.prediction.words import CAVEAT, number, steps

    console = Console(highlight=False)
    setting = prediction.setting
    console.print(
        f"[bold]{setting.num_samples:,} examples, {setting.num_classes:,} classes, {setting.dim:,} dimensions[/]; "
        f"gamma {number(setting.gamma)}, rate {number(setting.lr)}, decays {number(setting.feature_decay)} (features) "
        f"and {number(setting.weight_decay)} (head). Head: {setting.head}."
    )
    for sentence in prediction.findings:
        console.print(f"• {sentence}", markup=False)
    table = Table(pad_edge=False, title="Neural collapse", title_justify="left")
    for name in ("measure", "now", f"at distance {setting.distance:g}", "limit"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for row in collapse_rows(prediction):
        table.add_row(*row)
    console.print(table)
    table = Table(pad_edge=False, title="Spectrum", title_justify="left")
    for name in ("singular value", "modes", "growth per step"):
        table.add_column(name, justify="right")
    for mode in prediction.spectrum[:8]:
        table.add_row(number(mode.singular_value), str(mode.multiplicity), number(mode.growth))
    if len(prediction.spectrum) > 8:
        table.add_row(f"and {len(prediction.spectrum) - 8} more", "", "")
    console.print(table)
    times = (f"{distance:g}: {steps(time)}" for distance, time in prediction.times.items())
    console.print(f"Time to a distance: {', '.join(times)}")
    console.print(f"[bold]Recommended, to reach the distance {advice.distance:g} with free features:[/]")
    for name, value in (
        ("gamma", number(advice.gamma)),
        ("decay", f"{number(advice.feature_decay)} of features and of weights"),
        ("lr", number(advice.lr)),
        ("class_weight", "none" if advice.class_weight is None else "n_c^(-1/2)"),
        ("epochs", f"{advice.epochs:,}"),
    ):
        console.print(f"  {name} {value}: {advice.reasons[name]}", markup=False)
    console.print(CAVEAT, style="dim")
