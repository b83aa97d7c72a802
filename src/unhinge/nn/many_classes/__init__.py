"""A trained classifier whose exact SGD costs the same for ten classes and for ten million."""

from unhinge.nn.many_classes.head import ManyClassHead

__all__ = ["ManyClassHead"]
