"""The classifier that the unhinged loss gives in closed form, for scikit-learn."""

from unhinge.sklearn.classifier import UnhingedClassifier

__all__ = ["UnhingedClassifier"]
