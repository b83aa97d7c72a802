"""scikit-learn's own checks, every one of them, of each kind of the classifier."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from unhinge.sklearn import UnhingedClassifier


@parametrize_with_checks(
    [
        UnhingedClassifier(),
        UnhingedClassifier(logit_penalty=1.0, class_weight=None),
        UnhingedClassifier(kernel="rbf"),
    ]
)
def test_scikit_learns_own_checks_hold(estimator: Any, check: Any):
    check(estimator)
