"""Every figure again: `list_experiments`, `reproduce`, `write_report`."""

from unhinge.experiments.registry import Experiment, find, list_experiments
from unhinge.experiments.report import write_report
from unhinge.experiments.run import redraw, reproduce
from unhinge.experiments.scale import as_scale

__all__ = ["Experiment", "as_scale", "find", "list_experiments", "redraw", "reproduce", "write_report"]
