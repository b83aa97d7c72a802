"""One contract for every path: what is true of one kind is true of all."""

from __future__ import annotations

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.cases import (
    MOMENTS,
    MOMENTS_OF_TIME,
    OF_TIME,
    PATHS,
    QUESTIONS,
    TIMES,
    WITHOUT_SLOPE,
    all_larger,
    answers,
    ask,
    asked,
)
from unhinge import LayerPeeled

ALL = PATHS | MOMENTS

for_each = pytest.mark.parametrize("name", ALL)


def timed(name: str) -> list[str]:
    """The questions that this path answers at a time."""
    return [question for question in asked(ALL[name]) if question in OF_TIME or question in MOMENTS_OF_TIME]


def smooth(name: str) -> list[str]:
    return [question for question in asked(ALL[name]) if question not in WITHOUT_SLOPE]


def same(mine: dict[str, Tensor], other: dict[str, Tensor], **budget: Any) -> None:
    assert mine.keys() == other.keys()
    for key in mine:
        torch.testing.assert_close(mine[key], other[key], msg=lambda text, key=key: f"{key}: {text}", **budget)


def identical(mine: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    same(mine, other, rtol=0.0, atol=0.0, equal_nan=True)


# ---- what an answer is ----------------------------------------------------------------------------------------------


@for_each
def test_every_question_has_a_finite_answer_or_says_why_not(name):
    case = ALL[name]
    path = case.path()
    for question in asked(case):
        for part, value in ask(path, question).items():
            # a distance that falls faster than any exponential has the rate minus infinity
            finite = torch.isfinite(value).all() or (question == "rate" and value == -torch.inf)
            assert finite, f"{question}.{part}: {value}"
    for question, reason in case.refuses.items():
        with pytest.raises(ValueError, match=reason):
            ask(path, question)


@for_each
def test_a_path_is_short_when_printed(name):
    path = ALL[name].path()
    answers(ALL[name], path)
    assert len(repr(path)) < 400
    assert "tensor(" not in repr(path)


@for_each
def test_asking_again_gives_the_same_answers(name):
    case = ALL[name]
    path = case.path()
    identical(answers(case, path), answers(case, path))


# ---- dtypes ---------------------------------------------------------------------------------------------------------

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@for_each
def test_a_start_of_fewer_digits_is_the_start_it_says(name, dtype):
    """The answers are those of the same numbers in float64, rounded once; in particular at(0) is the start."""
    case = ALL[name]
    low = case.inputs.each(lambda x: x.to(dtype))
    ours, exact = answers(case, case.path(low)), answers(case, case.path(low.each(Tensor.double)))
    eps = torch.finfo(dtype).eps
    for key, value in ours.items():
        assert value.dtype == dtype, key
        size = exact[key].abs().max().item() if exact[key].numel() else 0.0
        torch.testing.assert_close(
            value.double(), exact[key], rtol=2 * eps, atol=eps * size + 1e-7, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("name", [name for name, case in PATHS.items() if "at" not in case.refuses])
def test_at_zero_is_the_start_to_the_bit(name, dtype):
    case = PATHS[name]
    low = case.inputs.each(lambda x: x.to(dtype))
    state = case.path(low).at(0)
    eps = torch.finfo(dtype).eps
    for mine, start in ((state.features, low.features), (state.weight, low.weight)):
        torch.testing.assert_close(mine, start, rtol=2 * eps, atol=2 * eps * start.abs().max().item())


@pytest.mark.parametrize("name", PATHS)
def test_a_path_of_any_dtype_is_drawn(name):
    case = PATHS[name]
    for dtype in (torch.bfloat16, torch.float16):
        assert len(case.path(case.inputs.each(lambda x, dtype=dtype: x.to(dtype))).plot([0, 1, 5]).axes) == 4


@pytest.mark.parametrize("kind", ["flow", "descent", "anchored", "kernel_flow"])
def test_a_start_that_half_precision_holds_is_the_state_at_zero(kind):
    generator = torch.Generator().manual_seed(0)
    features, weight = (torch.randn(n, 512, generator=generator).half() for n in (100, 10))  # a norm of 237
    extra = [torch.eye(100).half()] if kind == "kernel_flow" else []
    state = getattr(LayerPeeled(torch.arange(10).repeat(10)), kind)(features, weight, *extra).at(0)
    torch.testing.assert_close(state.features, features)
    torch.testing.assert_close(state.weight, weight)


# ---- scales ---------------------------------------------------------------------------------------------------------

SCALES = {"1e-160": 2.0**-531, "1e-80": 2.0**-266, "1e80": 2.0**266, "1e150": 2.0**498}  # powers of 2: no rounding
DEGREES = ("feature_norm.", "weight_norm.")
QUADRATIC = ("feature_norm_squared.", "weight_norm_squared.", "within_scatter.", "between_scatter.")


@pytest.mark.parametrize("scale", SCALES)
@for_each
def test_a_path_of_any_scale_is_the_same_path(name, scale):
    case, factor = ALL[name], SCALES[scale]
    given = case.inputs.change(bias=None)
    larger = (case.scaled or all_larger)(given, factor)
    plain, other = answers(case, case.path(given)), answers(case, case.path(larger))
    assert plain.keys() == other.keys()
    for key, value in plain.items():
        question, part = key.split(".")
        if question in ("log_norm", "log_norm_squared"):
            value = value + math.log(factor) * (1 if question == "log_norm" else 2)
        elif question == "loss":
            value = value * factor if case.loss_degree == 1 else value * factor * factor
        elif key in QUADRATIC:
            value = value * factor * factor
        elif question in ("at", "limit") and part in ("features", "weight"):
            value = value * factor
            if question == "at":
                value = value * torch.exp(plain["at.log_scale"])[:, None, None]
                value = value / factor * torch.exp(math.log(factor) - other["at.log_scale"])[:, None, None]
        elif key in DEGREES or (case.held and key == "direction.weight"):
            value = value * factor
        if key == "at.log_scale":
            continue  # free to be anything that keeps features and weight in range
        # subnormal numbers have fewer digits: below 1e-308 only that many can be asked for
        size = value.abs().max().item()
        torch.testing.assert_close(
            other[key], value, rtol=1e-9, atol=1e-11 * size + 1e-321, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("scale", [2.0**-83, 2.0**63])  # squares of 1e-25 and of 1e19 are no numbers of float32
@pytest.mark.parametrize("name", [name for name, case in PATHS.items() if case.scaled is None and not case.held])
def test_questions_about_directions_do_not_depend_on_the_scale_of_float32(name, scale):
    case = PATHS[name]
    plain = case.inputs.change(bias=None).each(Tensor.float)
    one, other = case.path(plain), case.path(all_larger(plain, scale))
    for question in ("distance", "accuracy", "rate", "time_to", "collapse"):
        if question not in case.refuses:
            same(ask(other, question), ask(one, question), rtol=1e-4, atol=1e-6)


# ---- times ----------------------------------------------------------------------------------------------------------

HUGE = [10**6, 10**9, 10**12]


@for_each
def test_times_of_any_shape_and_kind_are_asked_one_by_one(name):
    path = ALL[name].path()
    grid = torch.tensor([[0, 1, 2], [5, 3, 11]])
    for question in timed(name):
        whole = ask(path, question, grid)
        for kind in (grid.double(), grid.int(), grid.float(), grid.numpy(), grid.tolist()):
            identical(ask(path, question, kind), whole)
        for row, column in ((0, 0), (0, 2), (1, 1), (1, 2)):
            alone = ask(path, question, int(grid[row, column]))
            for part, value in whole.items():
                assert value.shape[:2] == grid.shape
                torch.testing.assert_close(
                    alone[part], value[row, column], rtol=1e-12, atol=1e-13 * value.abs().max().item()
                )


@for_each
def test_no_times_have_no_answers(name):
    path = ALL[name].path()
    for question in timed(name):
        one = ask(path, question, torch.tensor(3))
        for empty in (torch.zeros(0, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.float64), []):
            shape = torch.as_tensor(empty).shape
            none = ask(path, question, empty)
            assert {part: (*shape, *value.shape) for part, value in one.items()} == {
                part: tuple(value.shape) for part, value in none.items()
            }


@for_each
def test_huge_times_are_finite(name):
    path = ALL[name].path()
    times = [10**3] if name in STEPPED else HUGE
    for question in timed(name):
        for part, value in ask(path, question, times).items():
            if question in ("loss", "feature_norm", "weight_norm") or "squared" in question or "scatter" in question:
                assert not torch.isnan(value).any(), part  # too large for any float is infinite
                assert question == "log_norm_squared" or name not in DECAYING or torch.isfinite(value).all()
            else:
                assert torch.isfinite(value).all(), f"{question}.{part}: {value}"


# taken one by one
STEPPED = ["spherical descent with decay", "momentum, scheduled", "minibatch moments, imbalanced"]
DECAYING = ["flow, decaying", "ordered flow, decaying"]


# ---- gradients ------------------------------------------------------------------------------------------------------


def mixed(answer: dict[str, Tensor]) -> Tensor:
    """One number that every entry of an answer enters with its own weight."""
    total = torch.zeros((), dtype=torch.float64)
    for part, value in answer.items():
        if part != "log_scale" and value.is_floating_point():
            total = total + (value * torch.linspace(0.3, 1.7, value.numel()).double().reshape(value.shape)).sum()
    return total


MOMENT = torch.tensor([2, 5])


@for_each
def test_gradients_by_everything_that_goes_in_are_finite_differences(name):
    case = ALL[name]
    leaves = case.inputs.leaves()
    names = [leaf for leaf in leaves if leaf not in case.ignores]
    # the time of a discrete path is a whole number
    questions = [question for question in smooth(name) if not (question == "time_to" and case.discrete)]

    def values(**changes: Tensor) -> dict[str, Tensor]:
        path = case.path(case.inputs.change(**(leaves | changes)))
        return {question: mixed(ask(path, question, MOMENT)) for question in questions}

    totals = values()
    slopes = {
        question: torch.autograd.grad(total, [leaves[leaf] for leaf in names], allow_unused=True)
        if total.requires_grad
        else (None,) * len(names)
        for question, total in totals.items()
    }
    leaves = {leaf: x.detach() for leaf, x in leaves.items()}
    generator = torch.Generator().manual_seed(3)
    for position, leaf in enumerate(names):
        start = leaves[leaf]
        along = torch.randn(start.shape, generator=generator, dtype=torch.float64)
        scale = start.abs().max().item() or 1.0
        if leaf in ("feature_decay", "weight_decay", "gamma") and start == 0:
            continue  # one-sided: no negative decays
        # two widths and Richardson's extrapolation: the error of the difference is of fourth order
        quotients = []
        # The excess growth is a difference of two growths, a thousand times smaller than they are. Over widths of 1e-4
        # their rounding shows in the sixth digit of its quotient, and ten times less over widths of 1e-3.
        narrow = (1e-3 if "excess_growth" in questions else 1e-4) * scale
        for width in (2 * narrow, narrow):
            up, down = values(**{leaf: start + width * along}), values(**{leaf: start - width * along})
            quotients.append({question: ((up[question] - down[question]) / (2 * width)).item() for question in up})
        for question, total in totals.items():
            if question == "rate" and total.item() == -math.inf:
                continue  # the distance falls faster than any exponential, for all inputs nearby
            slope = slopes[question][position]
            ours = 0.0 if slope is None else (slope * along).sum().item()
            expected = (4 * quotients[1][question] - quotients[0][question]) / 3
            # What rounding leaves of the two growths stands in the quotients of their difference all the same.
            terms = totals["growth"] if question == "excess_growth" else total
            size = max(abs(expected), 1e-3 * abs(terms.item()) / scale, 1e-6)
            assert math.isfinite(ours), f"{question} by {leaf}: {ours}"
            assert abs(ours - expected) <= 2e-6 * size, f"{question} by {leaf}: {ours} instead of {expected}"


SPECIAL = ["collapsed", "features of zero", "prototypes of zero", "all alike"]
OF_STATES = ["at", "loss", "feature_norm", "weight_norm", "log_norm"]


@pytest.mark.parametrize("start", SPECIAL)
@pytest.mark.parametrize("name", PATHS)
def test_gradients_where_the_start_lacks_a_part_are_finite_differences(name, start):
    """Neighbours of such a start have the part: an answer may be zero there, and its slope need not be."""
    case = ALL[name]
    if "spherical" in name and "zero" in start:
        return  # refused: a zero vector has no direction
    labels = torch.as_tensor(case.inputs.target)
    labels = labels if labels.ndim == 1 else labels.argmax(1)
    features, weight = case.inputs.features.double(), case.inputs.weight.double()
    if start == "collapsed":
        features = weight[labels].clone()
    elif start == "features of zero":
        features = torch.zeros_like(features)
    elif start == "prototypes of zero":
        weight = torch.zeros_like(weight)
    else:
        features, weight = torch.ones_like(features), torch.ones_like(weight)
    inputs = case.inputs.change(features=features, weight=weight)
    leaves = inputs.leaves()
    names = [leaf for leaf in leaves if leaf not in case.ignores]
    generator = torch.Generator().manual_seed(3)
    for question in set(smooth(name)) & set(OF_STATES):

        def value(question: str = question, **changes: Tensor) -> Tensor:
            return mixed(ask(case.path(inputs.change(**(leaves | changes))), question, MOMENT))

        total = value()
        if not torch.isfinite(total):
            continue  # the logarithm of zero
        slopes = [None] * len(names)
        if total.requires_grad:
            slopes = torch.autograd.grad(total, [leaves[leaf] for leaf in names], allow_unused=True)
        for leaf, slope in zip(names, slopes, strict=True):
            middle = leaves[leaf].detach()
            if leaf in ("feature_decay", "weight_decay", "gamma") and middle == 0:
                continue  # one-sided: no negative decays
            along = torch.randn(middle.shape, generator=generator, dtype=torch.float64)
            width = 1e-4 * (middle.abs().max().item() or 1.0)
            with torch.no_grad():
                wide, narrow = (
                    (value(**{leaf: middle + step * along}) - value(**{leaf: middle - step * along})).item()
                    / (2 * step)
                    for step in (2 * width, width)
                )
            expected = (4 * narrow - wide) / 3
            ours = 0.0 if slope is None else (slope * along).sum().item()
            size = max(abs(expected), 1e-3 * abs(total.item()), 1e-3)
            assert abs(ours - expected) <= 1e-5 * size, f"{question} by {leaf}: {ours} instead of {expected}"


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if not case.discrete])
def test_gradients_by_the_time_are_finite_differences(name):
    path = ALL[name].path()
    width = 1e-3
    for question in timed(name):
        if question in WITHOUT_SLOPE:
            continue
        time = torch.tensor([0.5, 2.5, 6.5], dtype=torch.float64, requires_grad=True)
        total = mixed(ask(path, question, time))
        slope = torch.zeros_like(time)
        if total.requires_grad:
            (slope,) = torch.autograd.grad(total, time)
        moment = time.detach()
        for k in range(3):
            step = torch.zeros_like(moment)
            step[k] = width
            up, down, nearer, lower = (
                mixed(ask(path, question, moment + share * step)) for share in (1, -1, 0.5, -0.5)
            )
            expected = ((4 * (nearer - lower) / width - (up - down) / (2 * width)) / 3).item()
            budget = 1e-6 * max(abs(expected), 1e-3 * abs(total.item()), 1e-6)
            assert abs(slope[k].item() - expected) <= budget, f"{question}: {slope[k]} instead of {expected}"


@for_each
def test_a_path_is_differentiated_as_often_as_it_is_asked(name):
    """Two questions, two backward passes, no `retain_graph`."""
    case = ALL[name]
    leaves = case.inputs.leaves()
    path = case.path(case.inputs.change(**leaves))
    for _ in range(2):
        for question in asked(case):
            if question in WITHOUT_SLOPE:
                continue
            total = mixed(ask(path, question, MOMENT))
            if total.requires_grad:
                total.backward()
    assert all(x.grad is not None for leaf, x in leaves.items() if leaf not in case.ignores)


@for_each
def test_answers_given_in_inference_mode_do_not_spoil_later_gradients(name):
    case = ALL[name]
    leaves = case.inputs.leaves()
    given = case.inputs.change(**leaves)
    path, fresh = case.path(given), case.path(given)
    with torch.inference_mode():
        answers(case, path)
    with torch.no_grad():
        answers(case, path)
    for question in asked(case):
        if question in WITHOUT_SLOPE:
            continue
        mine, other = mixed(ask(path, question, MOMENT)), mixed(ask(fresh, question, MOMENT))
        assert mine.requires_grad == other.requires_grad
        if not mine.requires_grad:
            continue
        a = torch.autograd.grad(mine, list(leaves.values()), allow_unused=True, retain_graph=True)
        b = torch.autograd.grad(other, list(leaves.values()), allow_unused=True, retain_graph=True)
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@for_each
def test_a_path_made_in_inference_mode_answers_outside_of_it(name):
    case = ALL[name]
    with torch.inference_mode():
        given = case.inputs.each(Tensor.clone)
        path = case.path(given)
    identical(answers(case, path), answers(case, case.path()))
    if not case.discrete:
        time = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        path.log_norm(time).backward()
        assert torch.isfinite(time.grad)


@for_each
def test_a_gradient_by_the_rate_of_a_path_of_inference_tensors(name):
    case = ALL[name]
    with torch.inference_mode():
        given = case.inputs.each(Tensor.clone)
    lr = torch.tensor(case.inputs.lr, dtype=torch.float64, requires_grad=True)
    question = "log_norm_squared" if name in MOMENTS else "loss"
    (slope,) = torch.autograd.grad(mixed(ask(case.path(given.change(lr=lr)), question, MOMENT)), lr)
    assert torch.isfinite(slope)


# ---- threads, copies, other kinds of input --------------------------------------------------------------------------


@for_each
def test_eight_threads_may_ask_one_path(name):
    case = ALL[name]
    moments = [torch.tensor([k, 2 * k + 1]) for k in range(8)]
    expected = [answers(case, case.path(), moment) for moment in moments]
    path, together = case.path(), Barrier(8)

    def work(which: int) -> list[dict[str, Tensor]]:
        together.wait()
        return [answers(case, path, moments[which]) for _ in range(3)]

    with ThreadPoolExecutor(8) as pool:
        actual = list(pool.map(work, range(8)))
    for mine, other in zip(actual, expected, strict=True):
        for answer in mine:
            identical(answer, other)


@for_each
def test_copies_and_pickles_answer_alike(name):
    case = ALL[name]
    path = case.path()
    early = [pickle.loads(pickle.dumps(path)), copy.deepcopy(path)]
    expected = answers(case, path)
    late = [pickle.loads(pickle.dumps(path)), copy.deepcopy(path)]
    for twin in early + late:
        assert type(twin) is type(path)
        identical(answers(case, twin), expected)


@for_each
def test_a_path_that_carries_gradients_can_be_pickled(name):
    case = ALL[name]
    leaves = case.inputs.leaves()
    path = case.path(case.inputs.change(**leaves))
    expected = answers(case, path)
    twin = pickle.loads(pickle.dumps(path))
    same(
        {key: value.detach() for key, value in answers(case, twin).items()},
        {key: value.detach() for key, value in expected.items()},
        rtol=1e-13,
        atol=1e-15,
    )


@for_each
def test_arrays_and_lists_are_as_good_as_tensors(name):
    case = ALL[name]
    expected = answers(case, case.path())
    names = ("target", "features", "weight", "bias", "kernel")
    identical(answers(case, case.path(case.inputs.each(Tensor.numpy, *names))), expected)
    if "streamed" not in name:  # batches are sliced by the caller
        lists = case.inputs.each(Tensor.tolist, *names)
        same(answers(case, case.path(lists)), expected, rtol=1e-12, atol=1e-13)


def test_arrays_of_float32_keep_their_dtype():
    case = PATHS["flow"]
    given = case.inputs.each(lambda x: x.float().numpy().astype(np.float32))
    assert case.path(given).loss(1.0).dtype == torch.float32


def test_every_question_of_the_contract_is_in_the_table():
    known = set(QUESTIONS)
    for case in PATHS.values():
        path = case.path()
        kind = type(path)  # not the path itself: a property may refuse to answer
        public = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
        missing = public - known - EXTRA
        assert not missing, f"{type(path).__name__} answers questions that no test asks: {sorted(missing)}"
    assert set(TIMES.tolist()) == {0, 1, 7}


# asked by tests of their own kind of path; plot() draws what the others say
EXTRA = {"plot", "schedule", "predict", "angles", "limit_norm", "hypotheses", "coefficients", "reduced", "correct"}
EXTRA |= {"learned"}


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("name", PATHS)
def test_learned_is_the_first_time_at_which_the_share_of_a_class_is_right(name, fraction):
    """Against the definition, on times that are looked at one by one  [eq: learned]."""
    case = PATHS[name]
    path = case.path()
    refused = case.refuses.get("accuracy") or (name == "spherical descent with decay" and "feature_decay")
    if refused:
        with pytest.raises(ValueError, match=refused):
            path.learned(fraction)
        return
    found, labels = path.learned(fraction), path.labels
    assert found.dtype == path.loss(0).dtype
    assert found.shape == (len(case.inputs.weight),)

    def first(times: Tensor, label: int) -> float:
        shares = path.correct(times)[:, labels == label].double().mean(1)
        right = (shares >= fraction).nonzero().flatten()
        return times[right[0]].item() if len(right) else torch.inf

    for label, time in enumerate(found.tolist()):
        if case.discrete:
            assert first(torch.arange(200), label) == (time if time < 200 else torch.inf)
        elif time == torch.inf:
            assert first(torch.linspace(0, 100, 300, dtype=torch.float64), label) == torch.inf
        else:
            assert first(torch.linspace(0, time * (1 - 1e-9), 300, dtype=torch.float64), label) in (torch.inf, time)
            assert first(torch.tensor([time], dtype=torch.float64), label) == time


def test_a_share_that_is_none_is_refused_by_every_path():
    for case in (PATHS["flow"], PATHS["anchored"], PATHS["kernel"], PATHS["spherical flow"]):
        with pytest.raises(ValueError, match="fraction"):
            case.path().learned(0.0)


def test_the_number_of_classes_follows_from_the_labels():
    from unhinge import LayerPeeled, Spherical, minibatch_moments

    given = PATHS["flow"].inputs
    assert LayerPeeled(given.target).num_classes == 3
    assert LayerPeeled(PATHS["soft labels"].inputs.target).num_classes == 3
    assert Spherical(given.target, given.weight).num_classes == 3
    sgd = minibatch_moments(given.target, None, given.features, given.weight)
    assert torch.isfinite(sgd.loss(3))


@for_each
def test_a_path_keeps_what_it_was_solved_for(name):
    """Somebody trains the same tensors in place, and compares; or changes an answer."""
    case = ALL[name]
    mine = case.inputs.each(Tensor.clone)
    target = mine.target.clone() if isinstance(mine.target, Tensor) else mine.target
    path = case.path(mine.change(target=target))
    before = answers(case, path)
    for part in (mine.features, mine.weight, mine.bias, target):
        if isinstance(part, Tensor):
            part.zero_()
    identical(answers(case, path), before)
    if "at" in before or any(key.startswith("at.") for key in before):
        state = path.at(1)
        for part in (state.features, state.weight):
            part.zero_()
        identical(answers(case, path), before)
