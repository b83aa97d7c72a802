"""Data sets as single tensors: readers of the files users have, batches, augmentation, imbalance, label noise."""

from unhinge.data.augment import Augment, augment_for
from unhinge.data.batches import batches, generator_of, num_batches
from unhinge.data.errors import DataError, DataWarning, MissingFile
from unhinge.data.images import ImageSet, Splits, channel_statistics, conform, shrink
from unhinge.data.imbalance import Imbalance, Subsample, imbalanced
from unhinge.data.label_noise import with_label_noise
from unhinge.data.load import NAMES, blank, load
from unhinge.data.stratify import stratified_split

__all__ = [
    "NAMES",
    "load",
    "blank",
    "ImageSet",
    "Splits",
    "DataError",
    "DataWarning",
    "MissingFile",
    "Augment",
    "augment_for",
    "batches",
    "num_batches",
    "generator_of",
    "Imbalance",
    "Subsample",
    "imbalanced",
    "with_label_noise",
    "stratified_split",
    "channel_statistics",
    "conform",
    "shrink",
]
