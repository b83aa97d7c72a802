"""Every figure again: `list_experiments`, `reproduce`, `write_report`. Drawing needs the extra `plot`."""

from unhinge.experiments.registry import Experiment, find, list_experiments
from unhinge.experiments.report import write_report
from unhinge.experiments.run import redraw, reproduce

__all__ = ["Experiment", "find", "list_experiments", "redraw", "reproduce", "write_report"]
