"""`unhinge evaluate`: measure a trained run, or several beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unhinge.cli.output import examples, refuse
from unhinge.results.json import as_json, plain

if TYPE_CHECKING:
    from unhinge.training.evaluation import Evaluation

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=examples("unhinge evaluate runs/pal", "unhinge evaluate runs/pal --ood svhn --json"))(evaluate)


def evaluate(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="What `unhinge train --out` wrote; with --ood also several of them, or records of studies, for a "
            "table of which score suits which loss.",
        ),
    ],
    ood: Annotated[
        str | None, typer.Option(help="Data sets that play the unknown, such as svhn,cifar100,noise.")
    ] = None,
    prior: Annotated[
        str | None, typer.Option(help="counts: also decide as if all classes were equally frequent.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder with the data sets.")] = None,
    weights: Annotated[str, typer.Option(help="last or best.")] = "last",
    out: Annotated[Path | None, typer.Option(help="Folder for the table of several runs (CSV, Markdown).")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")] = False,
) -> None:
    """Measure a trained run: accuracy, calibration, neural collapse, and out-of-distribution detection.

    Writes evaluation.json and a figure with the reliability diagram and the scores into the folder; with --ood also
    ood.csv and leaderboard.csv in OpenOOD's columns, and histograms of every score.
    """
    from unhinge.ood.figures import draw_scores
    from unhinge.results.look import save
    from unhinge.training.evaluation import evaluate as measure
    from unhinge.training.plots import draw_evaluation

    if weights not in ("last", "best"):
        refuse(f"--weights must be last or best, got {weights!r}.")
    if prior not in (None, "counts"):
        refuse(f"--prior must be counts, got {prior!r}.")
    if ood is not None and not ood.replace(",", "").strip():
        refuse("--ood needs names of data sets, such as svhn,cifar100; it got none. Leave it out to detect nothing.")
    if len(folders) > 1 or out is not None:
        if prior is not None:
            refuse("--prior is for one run: a table of several has its scores of unknown images. Leave it out.")
        _compare(folders, ood, data_root, weights, out, json)
        return
    (folder,) = folders
    try:
        evaluation = measure(folder, ood, data_root=data_root, which=weights, prior=prior)  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        refuse(str(error))
    title = f"{folder.name}: accuracy {100 * evaluation.numbers['accuracy']:.2f} %"
    save(draw_evaluation(evaluation, title), folder, "evaluation")
    if evaluation.detections:
        title = f"{folder.name}: scores of known and unknown images"
        save(draw_scores(evaluation.known, evaluation.unknown, title), folder, "ood")
    if json:
        typer.echo(as_json(plain(evaluation.numbers)))
        return
    _print_evaluation(evaluation)


def _compare(
    places: list[Path], ood: str | None, data_root: Path | None, weights: str, out: Path | None, json: bool
) -> None:
    from unhinge.ood.comparison import comparison_markdown, comparison_records
    from unhinge.results.folders import writable
    from unhinge.results.sealed import write_atomically
    from unhinge.results.tables import write_csv
    from unhinge.training.comparing import compare_runs

    if ood is None:
        refuse(
            "several runs are compared by their scores of unknown images, which is also what --out is for: name the "
            "sets with --ood svhn,cifar100."
        )
    try:
        place = None if out is None else writable(out)  # before anything is measured
        table = compare_runs(places, ood, data_root, weights)
        if place is not None:
            write_csv(place / "which-score.csv", comparison_records(table))
            write_atomically(place / "which-score.md", (comparison_markdown(table) + "\n").encode())
    except (ValueError, OSError) as error:
        refuse(str(error))
    typer.echo(as_json(comparison_records(table)) if json else comparison_markdown(table))


def _print_evaluation(evaluation: Evaluation) -> None:
    from rich.console import Console
    from rich.table import Table

    numbers = evaluation.numbers
    table = Table(pad_edge=False, show_header=False)
    table.add_row("accuracy", f"{numbers['accuracy']:.4f}")
    for name in ("many", "medium", "few"):
        if numbers["shots"][name] == numbers["shots"][name]:  # not NaN
            table.add_row(f"accuracy, {name}-shot classes", f"{numbers['shots'][name]:.4f}")
    fitted = numbers["training"]
    reached = "yes" if fitted["interpolated"] else "no"
    table.add_row("accuracy on its training images", f"{fitted['accuracy']:.4f} (every class fitted: {reached})")
    adjusted, by_strength = numbers.get("adjusted"), numbers["adjusted_accuracy"] or {}
    asked = "adjusted" in numbers or _imbalanced(evaluation.folder)
    for strength, accuracy in by_strength.items():
        if strength != "0" and asked:
            table.add_row(f"accuracy, adjusted with strength {strength}", f"{accuracy:.4f}")
    if adjusted is not None:
        strength = f"{adjusted['strength']:g}"
        if strength not in by_strength:
            table.add_row(f"accuracy, adjusted with strength {strength}", f"{adjusted['all']:.4f}")
        for name in ("many", "medium", "few"):
            if adjusted[name] == adjusted[name]:  # not NaN
                table.add_row(f"accuracy, strength {strength}, {name}-shot classes", f"{adjusted[name]:.4f}")
    elif "adjusted" in numbers:
        table.add_row("accuracy, adjusted", "this loss gives no probabilities to adjust")
    if "posterior_ece" in numbers:
        table.add_row("calibration error (ECE) of the posterior", f"{numbers['posterior_ece']:.4f}")
        table.add_row("ECE of the softmax, no probability here", f"{numbers['ece']:.4f}")
    else:
        table.add_row("calibration error (ECE)", f"{numbers['ece']:.4f}")
    table.add_row("class-wise ECE", f"{numbers['classwise_ece']:.4f}")
    table.add_row("log loss", f"{numbers['log_loss']:.4g}")
    scaled = numbers["after_temperature"]
    if scaled is not None:
        table.add_row(f"log loss with a temperature of {scaled['temperature']:.3g}", f"{scaled['log_loss']:.4g}")
        table.add_row("ECE with that temperature", f"{scaled['ece']:.4f}")
    table.add_row("mean feature norm", f"{numbers['feature_norm']:.4g}")
    for name, value in numbers["prototypes"].items():
        table.add_row(PROTOTYPES[name], f"{value:.4g}" + ("°" if "angle" in name else ""))
    for name, value in numbers["collapse"].items():
        table.add_row(COLLAPSE[name], f"{value:.4g}")
    console = Console()
    console.print(table)
    for note in numbers["notes"]:
        console.print(f"Note: {note}", highlight=False)
    if evaluation.detections:
        unknown = Table("score", "unknown", "AUROC", "FPR95", "AUPR in", "AUPR out", pad_edge=False)
        sets = {row.data: row.distance for row in evaluation.detections if not row.is_mean}
        for row in evaluation.detections:
            if row.is_mean and list(sets.values()).count(row.distance) == 1:
                continue  # the mean of one set is that set
            sure = (_with_interval(row.measures[name], row.intervals[name]) for name in ("auroc", "fpr95"))
            plain = (f"{100 * row.measures[name]:.1f}" for name in ("aupr_in", "aupr_out"))
            unknown.add_row(row.score, f"mean of {row.data}" if row.is_mean else row.data, *sure, *plain)
        console.print(unknown)
        words = "Percentages, with 95 % bootstrap intervals in brackets; all numbers are in evaluation.json."
        if len(sets) > len(set(sets.values())):  # there is a mean of several
            words += " Near data sets resemble the training set, far ones do not."
        console.print(words, highlight=False)
    console.print(f"{evaluation.folder}/evaluation.json, evaluation.png, evaluation.pdf", highlight=False)


def _imbalanced(folder: Path) -> bool:
    """Whether there is something to adjust decisions for; of a folder that does not say it, perhaps."""
    from unhinge.training.records import read_data

    about = read_data(folder)
    return about is None or max(about["counts"]) > 1.5 * min(about["counts"])


PROTOTYPES = {
    "prototype_norm_min": "smallest norm of a prototype",
    "prototype_norm_ratio": "largest over smallest norm of prototypes",
    "prototype_angle_min": "smallest angle between prototypes",
}
COLLAPSE = {
    "nc1": "NC1, tr(Σ_W Σ_B⁺)/C",
    "nc1_ratio": "NC1, tr Σ_W / tr Σ_B",
    "nc2_norm_features": "NC2, spread of the norms of class means",
    "nc2_angle_features": "NC2, angles of class means, |cos + 1/(C-1)|",
    "nc2_etf_features": "NC2, distance of class means from a simplex",
    "nc2_norm_weight": "NC2, spread of the norms of prototypes",
    "nc2_angle_weight": "NC2, angles of prototypes, |cos + 1/(C-1)|",
    "nc2_etf_weight": "NC2, distance of prototypes from a simplex",
    "nc3": "NC3, self-duality",
    "nc4": "NC4, share that differs from the nearest mean",
    "alignment": "cosine of class mean and prototype",
    "feature_alignment": "cosine of feature and prototype",
}


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
