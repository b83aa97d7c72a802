"""`UnhingedClassifier`: the minimizer of the unhinged loss as a scikit-learn estimator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from numbers import Real
from operator import add
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from unhinge.sklearn.expansion import KERNEL_PARAMETERS, expansion, kernel_function, kernel_products
from unhinge.sklearn.solution import linear_solution
from unhinge.sklearn.sums import Array, Sums
from unhinge.sklearn.temperature import FOLDS, HeldOutLosses, digest_of, enough_of, fold_of

__all__ = ["UnhingedClassifier"]

# Those of the theory, whose module would import torch: nothing here needs it.
CLASS_WEIGHT_POWERS = {"sqrt": 0.5, "balanced": 1.0}
WeightByLabel: TypeAlias = dict[Any, float]  # a label is whatever the caller has


class UnhingedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""The regularized linear or kernel classifier that the unhinged loss gives in closed form.

    .. math::
        \min_{W, b}\ &\sum_i\omega_i\Big(-z_{i,y_i} + \gamma\sum_{j \ne y_i} z_{i,j}\Big) + \tfrac\lambda2\|W\|^2 \\
        &+ \tfrac\mu2\Big(\operatorname{mean}_i\|W(x_i - c)\|^2 + \|b\|^2\Big),\qquad z_i = W(x_i - c) + b,

    around the mean c, has the solution :math:`w_c \propto (\lambda I + \mu\Sigma)^{-1}\pi_c(\bar x_c - c)`. One pass
    over the data, sums that can be merged, no iteration.

    What it is, frankly. With ``logit_penalty=0`` and balanced classes it compares :math:`(\bar x_c - c)^\top(x - c)`:
    the nearest centroid up to the offsets :math:`-\|\bar x_c - c\|^2/2`, which the linear loss does not have. For two
    classes the two are the same classifier; for more, a class whose mean lies amid the others is hidden by them.
    `alpha` and `gamma` then scale the scores and change no prediction. With ``logit_penalty=1, gamma=1,
    class_weight=None`` it is exactly ``RidgeClassifier(alpha * n)``, of two classes with twice its scores. With a
    kernel and ``logit_penalty=0`` it is the classifier of kernel mean embeddings (Parzen windows, centered). What the
    linear loss brings is speed, exact updates, and indifference to symmetric label noise: noise shrinks all
    :math:`\bar x_c - c` by one factor.

    Arguments:
        gamma: Weight :math:`\gamma` of the other scores; `None` means :math:`1/(C-1)`.
        alpha: Weight decay :math:`\lambda > 0`.
        logit_penalty: Decay :math:`\mu \ge 0` of the scores; above 0 a p-by-p system is solved. Over the examples as
            weighted by `sample_weight`, whatever `class_weight` says.
        class_weight: ``"balanced"`` (each class the same total, whatever its number), ``"sqrt"`` (weights
            :math:`n_c^{-1/2}`, half way there), `None`, or a dictionary from label to weight. Unlike elsewhere in
            scikit-learn ``"balanced"`` is the default: without it the prototypes carry the factor :math:`\pi_c`, and
            small classes drown. It works with :meth:`partial_fit`.
        kernel: ``"linear"``, any name that ``sklearn.metrics.pairwise.pairwise_kernels`` knows but ``"precomputed"``,
            or a function of two sets of rows that returns their matrix. The examples are kept, as in kernel ridge
            regression, and `logit_penalty` must be 0.
        kernel_params: Parameters of the kernel, such as ``{"gamma": 0.1}``.
        calibrate: Fit the scale of :meth:`predict_proba` to held-out predictions, of some 4,000 examples where there
            are more. False leaves the scores as they are (a scale of 1); :meth:`predict` is the same.

    Attributes:
        classes_: The labels.
        coef_, intercept_: As in scikit-learn's linear classifiers; of the linear kernel only.
        beta_: The factor of the scores in :meth:`predict_proba`.
        n_features_in_: The number of features.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> UnhingedClassifier().fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) > 0.8
        True
    """

    _was_linear: bool  # the kernel, when it was fitted
    _sums: Sums  # of the linear kernel, with the three below
    _origin: Array  # (p,)
    _prototypes: Array  # (C, p)
    _center: Array  # (p,)
    _rows: Array  # (n, p), the examples, of other kernels, with the four below
    _labels: Array  # (n,)
    _weight: Array  # (n,)
    _dual: Array  # (n, C)
    _biases: Array  # (C,)
    _offsets: Array  # (C,)
    _losses: HeldOutLosses

    def __init__(
        self,
        *,
        gamma: float | None = None,
        alpha: float = 1.0,
        logit_penalty: float = 0.0,
        class_weight: str | WeightByLabel | None = "balanced",
        kernel: str | Callable[..., Array] = "linear",
        kernel_params: Mapping[str, object] | None = None,
        calibrate: bool = True,
    ) -> None:
        self.gamma = gamma
        self.alpha = alpha
        self.logit_penalty = logit_penalty
        self.class_weight = class_weight
        self.kernel = kernel
        self.kernel_params = kernel_params
        self.calibrate = calibrate

    # ---- fitting ----------------------------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to all examples.

        Arguments:
            X: Examples, shape (n, p).
            y: Labels, shape (n,).
            sample_weight: Weights, shape (n,); a weight of 2 is exactly an example that occurs twice.
        """
        with self._all_or_nothing():
            self._check_parameters()
            rows, labels = validate_data(self, X, y, dtype=(np.float64, np.float32), reset=True)
            check_classification_targets(labels)
            self.classes_ = np.unique(labels)
            return self._start(rows, labels, sample_weight, fewest=2)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Add examples. The classifier is the one that a single `fit` to all of them would give.

        The scale of :meth:`predict_proba` is not the same: the first call cross-validates as `fit` does, later ones
        score each batch before they learn from it, so early, poorer scores stay in the balance.

        Arguments:
            X: Examples, shape (n, p).
            y: Labels, shape (n,).
            classes: All labels there will be; needed in the first call, unless the first batch has them all.
            sample_weight: Weights, shape (n,).
        """
        with self._all_or_nothing():
            return self._added(X, y, classes, sample_weight)

    def _added(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None, sample_weight: ArrayLike | None) -> Self:
        first = not hasattr(self, "classes_")
        self._check_parameters()
        rows, labels = validate_data(self, X, y, dtype=(np.float64, np.float32), reset=first)
        check_classification_targets(labels)
        if not first:
            self._check_unchanged()
            if self._was_linear and self._sums.second is None and self.logit_penalty > 0:
                raise ValueError(
                    "logit_penalty was 0 when it was fitted, and nothing it needs was kept. Call fit() again."
                )
        if first:
            self.classes_ = np.unique(labels) if classes is None else np.unique(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={np.unique(classes)} is not what the first call had: {self.classes_}.")
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y has labels that are not in classes: {unknown[:5]}. Give all of them in the first call."
            )
        if first:
            return self._start(rows, labels, sample_weight, fewest=1)
        places, weight = self._places(labels), _weights(sample_weight, rows)
        if self.calibrate and self._usable(self._mass):  # of one class alone, scores say nothing about their scale
            some = enough_of(digest_of(rows), weight)
            self._calibrate(self._scores(rows[some]), places[some], weight[some])
        if self._linear:
            second = self.logit_penalty > 0
            self._sums = self._sums + Sums.of(rows, places, weight, len(self.classes_), self._origin, second)
        else:
            self._rows = np.concatenate([self._rows, np.asarray(rows, dtype=np.float64)])
            self._labels = np.concatenate([self._labels, places])
            self._weight = np.concatenate([self._weight, weight])
        self._solve()
        return self

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """What is refused leaves the classifier as it was: fitted to the earlier data, or not fitted."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _start(self, X: Array, y: Array, sample_weight: ArrayLike | None, fewest: int) -> Self:
        weight = _weights(sample_weight, X)
        places = self._places(y)
        mass = np.bincount(places, weight, len(self.classes_))
        present = int((mass > 0).sum())
        if len(self.classes_) < 2 or present < fewest:
            raise ValueError(
                f"at least 2 classes are needed, with examples of positive weight in {fewest} of them; got "
                f"{len(self.classes_)} class(es), {present} with examples."
            )
        emphasis = self._class_weights(mass)
        if not (emphasis * mass).sum() > 0:
            raise ValueError(
                f"class_weight must hold weights that are not all 0 where there are examples, got {emphasis}."
            )
        self._was_linear = self._linear
        if self._linear:
            # a weighted mean: copies and weights move it alike
            self._origin = np.average(np.asarray(X, dtype=np.float64), axis=0, weights=weight)
        else:
            self._rows, self._labels, self._weight = np.asarray(X, dtype=np.float64), places, weight
        held_out = self._fit_linear(X, places, weight) if self._linear else self._fit_kernel()
        self._losses, self.beta_ = HeldOutLosses.empty(), 1.0
        if held_out is not None:
            scores, known = held_out
            self._calibrate(scores[known], places[known], weight[known])
        return self

    def _calibrate(self, scores: Array, places: Array, weight: Array) -> None:
        """Learn the scale of probabilities from scores that were made without these examples."""
        self._losses = self._losses.add(scores, places, weight)
        self.beta_ = self._losses.beta

    def _fit_linear(self, X: Array, places: Array, weight: Array) -> tuple[Array, Array] | None:
        """Sums and solution; held-out scores, by taking the sums of each fold away from those of all."""
        classes, second = len(self.classes_), self.logit_penalty > 0
        if not self.calibrate:
            self._sums = Sums.of(X, places, weight, classes, self._origin, second)
            self._solve()
            return None
        digest = digest_of(X)
        fold, chosen = fold_of(digest), enough_of(digest, weight)
        parts = Sums.by_fold(X, places, weight, classes, self._origin, second, fold, FOLDS)
        self._sums = total = reduce(add, parts)
        self._solve()
        scores, known = np.zeros((len(X), classes)), np.zeros(len(X), dtype=bool)
        for number, part in enumerate(parts):
            rest, at = total - part, chosen[fold[chosen] == number]
            if len(at) and self._usable(rest.mass):
                prototypes, offsets, center = self._linear_solution(rest)
                scores[at] = (X[at] - (self._origin + center)) @ prototypes.T + offsets
                known[at] = True
        return scores, known

    def _fit_kernel(self) -> tuple[Array, Array] | None:
        """Coefficients and offsets; held-out scores from the same pass over the kernel matrix."""
        if not self.calibrate:
            self._solve()
            return None
        x, places, weight, classes = self._rows, self._labels, self._weight, len(self.classes_)
        digest = digest_of(x)
        fold, chosen = fold_of(digest), enough_of(digest, weight)
        columns, usable, biases = [], [], []
        for number in range(FOLDS):
            rest = np.where(fold == number, 0.0, weight)
            mass = np.bincount(places, rest, classes)
            usable.append(self._usable(mass))
            if usable[-1]:
                d, omega, bias = expansion(places, rest, self._class_weights(mass), self._gamma, self.alpha)
                columns.append(np.column_stack([d, omega]))
                biases.append(bias)
            else:
                columns.append(np.zeros((len(x), classes + 1)))
                biases.append(np.zeros(classes))
        products = kernel_products(self._kernel_values, x, x, np.concatenate([*columns, self._expand()], axis=1))
        self._offsets = self._biases - self._dual.T @ products[:, -1]
        scores, known = np.zeros((len(x), classes)), np.zeros(len(x), dtype=bool)
        for number in range(FOLDS):
            if usable[number]:
                at, first = chosen[fold[chosen] == number], number * (classes + 1)
                shift = columns[number][:, :-1].T @ products[:, first + classes]
                scores[at] = products[at, first : first + classes] - shift + biases[number]
                known[at] = True
        return scores, known

    @property
    def _mass(self) -> Array:
        """The total weight of each class, (C,)."""
        return self._sums.mass if self._linear else np.bincount(self._labels, self._weight, len(self.classes_))

    def _expand(self) -> Array:
        """The coefficients of all examples; returns their shares as a column."""
        emphasis = self._class_weights(self._mass)
        self._dual, omega, self._biases = expansion(self._labels, self._weight, emphasis, self._gamma, self.alpha)
        return omega[:, None]

    def _solve(self) -> None:
        if self._linear:
            prototypes, offsets, center = self._linear_solution(self._sums)
            self._prototypes, self._center, self._offsets = prototypes, self._origin + center, offsets
        else:
            omega = self._expand()
            centering = kernel_products(self._kernel_values, self._rows, self._rows, omega)
            self._offsets = self._biases - self._dual.T @ centering[:, 0]

    def _linear_solution(self, total: Sums) -> tuple[Array, Array, Array]:
        emphasis = self._class_weights(total.mass)
        return linear_solution(total, emphasis, self._gamma, self.alpha, self.logit_penalty)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores z, shape (n, C); of two classes their difference, shape (n,), positive for the second."""
        scores = self._scores(self._checked(X))
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> Array:
        """The class of the largest score; the first of equal ones."""
        best = self._scores(self._checked(X)).argmax(1)
        labels: Array = self.classes_[best]
        return labels

    def predict_proba(self, X: ArrayLike) -> Array:
        r"""Probabilities :math:`\mathrm{softmax}(\beta z)`, shape (n, C).

        The loss itself is not a proper scoring rule, so its scores say which class, not how sure. One number,
        :math:`\beta`, is fitted to the log loss of held-out predictions (five folds, by the content of the rows): it is
        calibrated on average for data like the training data, noisy labels included, not class by class.
        """
        scores = self._scores(self._checked(X))
        probabilities: Array = softmax(self.beta_ * scores, axis=1)
        return probabilities

    @property
    def coef_(self) -> Array:
        """Prototypes, shape (C, p), or their difference, shape (1, p), of two classes."""
        check_is_fitted(self)
        if not self._linear:
            raise AttributeError("coef_ exists for the linear kernel only.")
        return self._prototypes[1:] - self._prototypes[:1] if len(self.classes_) == 2 else self._prototypes

    @property
    def intercept_(self) -> Array:
        """Scores at the origin, shape (C,), or (1,) of two classes."""
        check_is_fitted(self)
        if not self._linear:
            raise AttributeError("intercept_ exists for the linear kernel only.")
        offsets = self._offsets - self._prototypes @ self._center
        return offsets[1:] - offsets[:1] if len(self.classes_) == 2 else offsets

    def _checked(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        self._check_unchanged()
        rows: Array = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return rows

    def _check_unchanged(self) -> None:
        """That the kernel, which decides what is kept of the data, is still that of the fit."""
        if self._was_linear != self._linear:
            was = "the linear" if self._was_linear else "another"
            raise ValueError(f"it was fitted with {was} kernel, and kernel is {self.kernel!r} now. Call fit() again.")

    def _scores(self, X: Array) -> Array:
        if self._linear:
            scores: Array = (X - self._center) @ self._prototypes.T + self._offsets
            return scores
        return kernel_products(self._kernel_values, X, self._rows, self._dual) + self._offsets

    # ---- parameters -------------------------------------------------------------------------------------------------

    @property
    def _linear(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "linear"

    @property
    def _gamma(self) -> float:
        return 1 / (len(self.classes_) - 1) if self.gamma is None else self.gamma

    def _kernel_values(self, a: Array, b: Array) -> Array:
        return kernel_function(self.kernel, self.kernel_params)(a, b)

    def _places(self, y: Array) -> Array:
        places: Array = np.searchsorted(self.classes_, y)
        return places

    def _class_weights(self, mass: Array) -> Array:
        """Class weights, for classes of these total weights."""
        if self.class_weight is None:
            return np.ones(len(mass))
        if isinstance(self.class_weight, str):
            relative = np.where(mass > 0, mass.mean() / np.where(mass > 0, mass, 1.0), 0.0)
            weights: Array = relative ** CLASS_WEIGHT_POWERS[self.class_weight]
            return weights
        assert isinstance(self.class_weight, dict)
        unknown = [label for label in self.class_weight if label not in self.classes_.tolist()]
        if unknown:
            raise ValueError(f"class_weight names {unknown[0]!r}, which is none of the classes {self.classes_}.")
        weights = np.array([float(self.class_weight.get(label, 1.0)) for label in self.classes_.tolist()])
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise ValueError(f"class_weight must hold weights that are finite and not negative, got {weights}.")
        return weights

    def _usable(self, mass: Array) -> bool:
        """Whether a fold's rest, of these total weights, can be fitted: two classes, and some weight on them."""
        return bool((mass > 0).sum() >= 2 and (self._class_weights(mass) * mass).sum() > 0)

    def _check_parameters(self) -> None:
        numbers: dict[str, object] = {"alpha": self.alpha, "logit_penalty": self.logit_penalty}
        if self.gamma is not None:
            numbers["gamma"] = self.gamma
        for name, value in numbers.items():
            if not isinstance(value, Real):
                raise ValueError(f"{name} must be a number, got {value!r}.")
        if self.gamma is not None and not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise ValueError(f"gamma must be None or a number of at least 0, got {self.gamma}.")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha must be greater than 0, got {self.alpha}; without decay there is no minimum.")
        if not (math.isfinite(self.logit_penalty) and self.logit_penalty >= 0):
            raise ValueError(f"logit_penalty must be at least 0, got {self.logit_penalty}.")
        named = isinstance(self.class_weight, str) and self.class_weight in CLASS_WEIGHT_POWERS
        if not (self.class_weight is None or named or isinstance(self.class_weight, dict)):
            names = ", ".join(f'"{name}"' for name in CLASS_WEIGHT_POWERS)
            raise ValueError(f"class_weight must be None, {names} or a dictionary, got {self.class_weight!r}.")
        if isinstance(self.kernel, str) and self.kernel == "precomputed":
            raise ValueError('kernel="precomputed" is not supported; pass the function that computes it.')
        unknown = sorted(set(self.kernel_params or {}) - KERNEL_PARAMETERS)
        if unknown and not callable(self.kernel):
            raise ValueError(f"no kernel has the parameter {unknown[0]!r}; there are {sorted(KERNEL_PARAMETERS)}.")
        if not self._linear and self.logit_penalty:
            raise ValueError(
                "logit_penalty needs the linear kernel: with another it is kernel ridge regression, which "
                "sklearn.kernel_ridge.KernelRidge solves."
            )


def _weights(sample_weight: ArrayLike | None, X: Array) -> Array:
    weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if (weights < 0).any():
        raise ValueError(f"sample_weight must not be negative, got {weights.min():g}.")
    return weights
