"""The answers in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unhinge.prediction.analysis import Prediction, Weighting

__all__ = ["CAVEAT", "SMALL_STEP", "findings", "number", "steps"]

SMALL_STEP = 0.1  # below it, flow and descent differ by 5 percent at most

CAVEAT = (
    "These answers are exact for free features: the feature of each example moves on its own (the layer-peeled model). "
    "The features of a network share its parameters, so they need more time. Take the times as the best case."
)


def number(value: float, digits: int = 4) -> str:
    """A number for reading.

    Example:
        >>> number(0.123456), number(float("inf"))
        ('0.1235', 'infinite')
    """
    return f"{value:.{digits}g}" if math.isfinite(value) else "infinite" if value > 0 else "-infinite"


def steps(time: float) -> str:
    """A time in steps.

    Example:
        >>> steps(1234.4), steps(0.3), steps(float("inf"))
        ('1,235 steps', '1 step', 'never')
    """
    if math.isinf(time):
        return "never"
    if time >= 1e12:
        return f"{time:.3g} steps"
    return f"{math.ceil(time):,} step{'' if math.ceil(time) == 1 else 's'}"


def findings(prediction: Prediction) -> list[str]:
    """Sentences, the most important first."""
    setting = prediction.setting
    said = [_collapsing(prediction), _course(prediction), _limit(prediction), _norms(prediction)]
    if prediction.largest_step > SMALL_STEP:
        said.append(
            f"The steps are large: lr times the fastest exponent is {number(prediction.largest_step, 3)}. All times "
            f"here are those of gradient flow; gradient descent itself needs {steps(prediction.descent_time)} to come "
            f"within {setting.distance:g}."
        )
    if prediction.cure is not None:
        said += _imbalance(prediction)
    else:
        examples = f"{setting.counts[0]:,} example{'s' if setting.counts[0] != 1 else ''}"
        said.append(f"The {setting.num_classes} classes have {examples} each, so no class weights are needed.")
    said.append(_gamma(prediction))
    return said


def _collapsing(prediction: Prediction) -> str:
    setting = prediction.setting
    time = prediction.times[setting.distance]
    if math.isinf(time):
        return f"The direction never comes within {setting.distance:g} of its limit."
    if time == 0:
        return f"The state is already within {setting.distance:g} of the direction it ends in."
    pace = (
        "at once"
        if math.isinf(prediction.rate)
        else f"and the distance halves every {_period(prediction.half_life)} (exponent {number(prediction.rate)})"
    )
    return f"The direction comes within {setting.distance:g} of its limit after {steps(time)}, {pace}."


def _course(prediction: Prediction) -> str:
    """The accuracy on the way, and where to stop."""
    course, limit = prediction.course, prediction.limit_accuracy
    now, peak = course.accuracy[0], course.peak
    first, last = course.window
    judged = "by the means of their classes"
    words = f"Judged {judged}, the best accuracy of the examples"
    if prediction.accuracy_now is not None:  # without a head all logits are zero now, and nothing is decided
        words = f"Now {100 * now:.1f} % of the examples are classified right, judged {judged}. The best accuracy"
    if peak > limit + 1e-12:  # more than the rounding of a share
        until = f" to step {math.ceil(last):,}" if last > first else ""
        kept = f"{'from' if until else 'at'} about step {math.ceil(first):,}{until}"
        return f"{words} is {100 * peak:.1f} %, {kept}. In the limit it is {100 * limit:.1f} %. Stop before it falls."
    reached = "from now on" if first == 0 else f"from about step {math.ceil(first):,} on"
    return f"{words} is {100 * peak:.1f} %, {reached}. Longer training does not lower it."


def _limit(prediction: Prediction) -> str:
    limit, classes = prediction.limit, prediction.setting.num_classes
    share = f"{100 * limit.accuracy:.1f} % of the examples"
    if limit.undecided == 1:
        return "In the limit all classes have the same direction and cannot be told apart: gamma is too large."
    distance = prediction.setting.distance
    when = _when(prediction.times[distance], distance, prediction.overflow)
    words = (
        f"In the limit {len(limit.right)} of {classes} classes ({share}) are classified right. The class means span "
        f"{limit.rank} dimension{'s' if limit.rank != 1 else ''}. {when[0].upper()}{when[1:]}."
    )
    if limit.undecided:
        words += f" {100 * limit.undecided:.1f} % of the examples are in classes that become negligibly small."
    return words


def _when(time: float, distance: float, overflow: float = math.inf) -> str:
    """When a limit is near: an accuracy in the limit says nothing to someone who stops long before."""
    if math.isinf(time):
        return f"training never comes within {distance:g} of this limit"
    words = f"training is within {distance:g} of this limit {'from the start' if time == 0 else 'after ' + steps(time)}"
    return words + (", but float32 overflows before that" if time > overflow else "")


def _norms(prediction: Prediction) -> str:
    setting = prediction.setting
    product = math.sqrt(setting.feature_decay * setting.weight_decay)
    compare = (
        f"critical decay {number(prediction.critical_decay)}, sqrt(feature_decay * weight_decay) = {number(product)}"
    )
    if prediction.outcome == "diverges":
        words = f"The norms grow without bound and double every {_period(prediction.doubling_time)} ({compare})."
        if math.isinf(prediction.overflow):
            return words
        return f"{words} In float32 the logits can overflow from step {prediction.overflow:,.0f} on, so stop before."
    if prediction.outcome == "vanishes":
        return f"The norms shrink to zero, with the exponent {number(prediction.growth)} per step ({compare})."
    return f"The norms settle at a finite value ({compare})."


def _period(time: float) -> str:
    """A period: "step" where it is one."""
    return "step" if math.ceil(time) == 1 else steps(time)


def _imbalance(prediction: Prediction) -> list[str]:
    by_name = {weighting.name: weighting for weighting in prediction.weightings}
    none, cure, inverse = by_name["none"], by_name["sqrt"], by_name["inverse"]
    classes, distance = prediction.setting.num_classes, prediction.setting.distance
    tail = f"The largest class has {prediction.imbalance:.4g} times the examples of the smallest"
    without = f"{tail}. Without class weights {_ends(none, classes, distance)}."
    if cure.right_classes <= none.right_classes:
        hint = "Lower gamma first." if prediction.setting.gamma > 1 / (classes - 1) else "The start decides it."
        return [f"{without} Here n_c^(-1/2) does not help: with it {_ends(cure, classes, distance)}. {hint}"]
    return [
        without,
        f"Use class weights n_c^(-1/2), where n_c is the size of class c. With them {_ends(cure, classes, distance)}. "
        f"Inverse frequencies 1/n_c are too strong: with them {_ends(inverse, classes, distance)}.",
        "If all classes are equally important at test time, also divide the posterior by the class frequencies "
        "(UF.balanced_decision, or UF.adjust_logits for cross-entropy). Use strength 1 after training without weights "
        "and 1/2 after training with n_c^(-1/2).",
    ]


def _ends(weighting: Weighting, classes: int, distance: float) -> str:
    right = f"{weighting.right_classes} of {classes} classes right ({100 * weighting.limit_accuracy:.1f} %)"
    return f"training ends with {right}; {_when(weighting.time_to_distance, distance)}"


def _gamma(prediction: Prediction) -> str:
    setting = prediction.setting
    the = "The" if prediction.cure is None else "With class weights n_c^(-1/2) the"
    if math.isinf(prediction.best_gamma):
        return "With two classes and unequal decays a larger gamma is always faster; there is no best one."
    edge = 2 / (setting.num_classes - 2) if setting.num_classes > 2 else math.inf
    gamma, rate = number(prediction.best_gamma), number(prediction.best_rate)
    words = f"{the} fastest gamma for almost every start is {gamma}, with the exponent {rate} per step."
    if setting.gamma > edge:
        return (
            f"{words} The present one, {number(setting.gamma)}, is beyond 2/(C-2) = {number(edge)}, where all "
            "classes end in one direction."
        )
    if math.isclose(setting.gamma, prediction.best_gamma, rel_tol=1e-6):  # typed with six digits
        return f"{words} You already use it."
    if prediction.cure is None and prediction.rate < prediction.best_rate:
        return (
            f"{words} From this start the present one, {number(setting.gamma)}, is faster, with the exponent "
            f"{number(prediction.rate)}: the start has no part in what is slowest."
        )
    return words
