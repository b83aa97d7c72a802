"""The classifier that the unhinged loss gives in closed form, for scikit-learn."""

from unhinge.extras import needed_for

with needed_for("unhinge.sklearn", extra="sklearn"):
    from unhinge.sklearn.classifier import UnhingedClassifier

__all__ = ["UnhingedClassifier"]
