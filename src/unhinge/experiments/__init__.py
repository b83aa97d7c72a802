"""Every figure and table again: what there is, making it, and the report."""

from unhinge.experiments.catalogue import choose, list_studies
from unhinge.experiments.registry import Experiment, find, list_experiments
from unhinge.experiments.report import write_report
from unhinge.experiments.run import redraw, reproduce
from unhinge.experiments.scale import as_scale
from unhinge.experiments.study import Study
from unhinge.experiments.study_run import reproduce_studies

__all__ = [
    "Experiment",
    "Study",
    "as_scale",
    "choose",
    "find",
    "list_experiments",
    "list_studies",
    "redraw",
    "reproduce",
    "reproduce_studies",
    "write_report",
]
