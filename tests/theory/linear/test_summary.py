"""A pass over batches leaves all that scalar questions need."""

from __future__ import annotations

import math
import os

import pytest
import torch

from oracles import assert_exact
from strategies import Case, make_case, named_cases
from two_processes import run_in_two
from unhinge import LayerPeeled, cosine, summarize, warmup

NAMED = named_cases()
KINDS = ["balanced", "imbalanced", "weighted", "sqrt weights", "unequal decays", "soft", "soft, weighted"]


def batches(case: Case, size: int):
    return list(zip(case.features.split(size), case.target.split(size), strict=True))


def streamed(case: Case, summary) -> LayerPeeled:
    return LayerPeeled.from_summary(
        summary,
        gamma=case.gamma,
        feature_decay=case.feature_decay,
        weight_decay=case.weight_decay,
        class_weight=case.class_weight,
    )


def same_answers(path, whole) -> None:
    times = torch.tensor([0, 3, 40, 10**6])
    for question in ("loss", "feature_norm", "weight_norm", "log_norm", "distance"):
        torch.testing.assert_close(
            getattr(path, question)(times), getattr(whole, question)(times), rtol=1e-11, atol=1e-13
        )
    torch.testing.assert_close(path.growth(), whole.growth(), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(path.rate(), whole.rate(), rtol=1e-10, atol=1e-15)
    torch.testing.assert_close(path.time_to(0.2), whole.time_to(0.2), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("name", KINDS)
def test_a_streamed_pass_answers_as_the_whole_does(name, size):
    case = NAMED[name]
    summary = summarize(batches(case, size), case.num_classes)
    problem = streamed(case, summary)
    same_answers(problem.flow(summary, case.weight, case.bias, lr=case.lr), case.flow())
    assert summary.size == len(case.target)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", ["descent", "momentum", "unrelated", "anchored", "anchored_descent"])
def test_a_streamed_pass_serves_every_optimizer(name, kind):
    case = NAMED[name]
    summary = summarize(batches(case, 3), case.num_classes)
    pair = cosine(0.2, total=50, end=0.05), warmup(0.1, duration=3)
    actual = []
    for problem, features in ((streamed(case, summary), summary), (case.problem(), case.features)):
        if kind.startswith("anchored"):
            path = getattr(problem, kind)(features, case.weight, case.bias)
        elif kind == "unrelated":
            path = problem.flow(features, case.weight, case.bias, lr=pair)
        else:
            path = problem.descent(features, case.weight, case.bias, momentum=0.9 if kind == "momentum" else 0.0)
        actual.append(path)
    times = torch.tensor([0, 3, 40])
    for question in ("loss", "feature_norm", "weight_norm", "log_norm", "distance"):
        torch.testing.assert_close(
            getattr(actual[0], question)(times), getattr(actual[1], question)(times), rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("name", ["balanced", "imbalanced"])
def test_collapse_measures_survive_streaming_but_for_the_one_that_needs_a_covariance(name):
    case = NAMED[name]
    summary = summarize(batches(case, 2), case.num_classes)
    actual = streamed(case, summary).flow(summary, case.weight, lr=case.lr).collapse(5.0)
    expected = case.flow().collapse(5.0)
    assert set(expected) - set(actual) <= {"nc1"}
    for key, value in actual.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", KINDS)
def test_summaries_of_parts_add_up(name):
    """[eq: merged-scatter]."""
    case = NAMED[name]
    one = summarize([(case.features[:2], case.target[:2])], case.num_classes)
    two = summarize([(case.features[2:5], case.target[2:5])], case.num_classes)
    three = summarize([(case.features[5:], case.target[5:])], case.num_classes)
    for merged in ((one + two) + three, one + (two + three), three + one + two):
        problem = streamed(case, merged)
        same_answers(problem.flow(merged, case.weight, case.bias, lr=case.lr), case.flow())


@pytest.mark.parametrize("question", ["at", "accuracy"])
@pytest.mark.parametrize("kind", ["flow", "descent", "anchored", "anchored_descent"])
@pytest.mark.parametrize("name", ["imbalanced", "soft"])
def test_questions_that_need_every_example_say_so(name, kind, question):
    case = NAMED[name]
    summary = summarize(batches(case, 3), case.num_classes)
    path = getattr(streamed(case, summary), kind)(summary, case.weight)
    with pytest.raises(ValueError, match=r"stream.*(memory|loss)"):
        getattr(path, question)(3)


@pytest.mark.parametrize("kind", ["flow", "anchored"])
def test_of_streamed_soft_labels_no_collapse_is_told(kind):
    """Their reduced features are not class means, and were once taken for such."""
    case = NAMED["soft"]
    summary = summarize(batches(case, 3), case.num_classes)
    path = getattr(streamed(case, summary), kind)(summary, case.weight)
    with pytest.raises(ValueError, match="label of each example cannot be given after a streamed pass"):
        path.collapse(3.0)


def test_a_summary_of_other_labels_is_refused():
    """Soft labels that are summed in other parts have another basis: the sign of a loss was once wrong."""
    case = NAMED["soft"]
    whole, split = (summarize(batches(case, size), case.num_classes) for size in (len(case.target), 3))
    hard = summarize([(case.features, case.target.argmax(1))], case.num_classes)
    own = LayerPeeled(case.target)
    assert own.flow(whole, case.weight).loss(1.0) == own.flow(case.features, case.weight).loss(1.0)
    problems = {"labels": own, "whole": LayerPeeled.from_summary(whole), "hard": LayerPeeled.from_summary(hard)}
    for name, summary in (("labels", split), ("labels", hard), ("whole", split), ("hard", whole)):
        with pytest.raises(ValueError, match="not the one that this problem was made from"):
            problems[name].flow(summary, case.weight)


def test_a_problem_from_a_summary_takes_only_summaries():
    case = NAMED["imbalanced"]
    summary = summarize(batches(case, 3), case.num_classes)
    with pytest.raises(ValueError, match="summary"):
        streamed(case, summary).flow(case.features, case.weight)


@pytest.mark.parametrize("spread", [1e-6, 1e-10])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_almost_collapsed_features_keep_an_accurate_scatter(spread, size):
    """Means of order 100, deviations of 1e-10: a difference of sums of squares would be all rounding
    [eq: merged-scatter]."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 4
    means = 100 * torch.randn(4, 3, generator=generator, dtype=torch.float64)
    apart = torch.randn(64, 3, generator=generator, dtype=torch.float64) * spread
    features = means[labels] + apart
    exact = 0.0
    for c in range(4):
        rows = [[float(x) for x in row] for row in features[labels == c]]
        for j in range(3):
            middle = math.fsum(row[j] for row in rows) / len(rows)
            exact += math.fsum((row[j] - middle) ** 2 for row in rows)
    summary = summarize(list(zip(features.split(size), labels.split(size), strict=True)), 4)
    # the features themselves are rounded to eps * 100, an absolute floor for every deviation from a mean
    floor = 8 * 64 * 3 * (100 * 2**-52) * spread
    assert summary.scatter.item() == pytest.approx(exact, rel=1e-3 if spread < 1e-8 else 1e-6, abs=floor)


def test_single_precision_streams_keep_their_dtype():
    case = make_case([3, 2, 1], dtype=torch.float32)
    summary = summarize(batches(case, 2), 3)
    path = LayerPeeled.from_summary(summary).flow(summary, case.weight)
    assert path.loss(3.0).dtype == torch.float32
    torch.testing.assert_close(path.loss(3.0), case.flow().loss(3.0), rtol=1e-5, atol=1e-6)


def _worker(rank: int, soft: bool, folder: str) -> None:
    case = NAMED["soft" if soft else "imbalanced"]
    part = slice(0, 4) if rank == 0 else slice(4, None)
    mine = summarize([(case.features[part], case.target[part])], case.num_classes)
    whole = mine.all_reduce()
    torch.save((whole.reduced(), whole.scatter, whole.size), os.path.join(folder, f"{rank}.pt"))
    path = streamed(case, whole).flow(whole, case.weight, case.bias, lr=case.lr)
    torch.save((path.loss(7.0), path.distance(7.0)), os.path.join(folder, f"answers{rank}.pt"))


@pytest.mark.parametrize("mean", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_single_precision_sums_stay_near_rounding_however_many_rows_come_at_once(order, mean):
    generator = torch.Generator().manual_seed(0)
    rows = mean + torch.randn(200_000, 4, generator=generator)
    labels = torch.randint(2, (len(rows),), generator=generator)
    labels = labels.sort().values if order == "sorted" else labels
    summary = summarize([(rows, labels)], 2)
    sums = torch.stack([rows[labels == kind].double().sum(0) for kind in (0, 1)])
    # One sum of 100,000 terms would be off by 25 eps and more; around zero the terms are what is rounded.
    size = sums.abs().max() + math.sqrt(len(rows))
    assert (summary.sums - sums).abs().max() <= 8 * torch.finfo(torch.float32).eps * size
    assert torch.equal(summary.counts, torch.bincount(labels))
    around = rows.double() - (sums / summary.counts[:, None])[labels]
    torch.testing.assert_close(summary.scatter, around.square().sum(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_processes_reduce_their_summaries_to_that_of_the_whole(soft, tmp_path):
    run_in_two(_worker, soft, str(tmp_path))
    case = NAMED["soft" if soft else "imbalanced"]
    whole = summarize(batches(case, 100), case.num_classes)
    for rank in range(2):
        reduced, scatter, size = torch.load(tmp_path / f"{rank}.pt")
        assert size == whole.size
        if not soft:  # a basis of soft labels is free to turn
            assert_exact(reduced, whole.reduced(), 16)
        assert scatter.item() == pytest.approx(whole.scatter.item(), rel=1e-12)
        loss, distance = torch.load(tmp_path / f"answers{rank}.pt")
        assert loss.item() == pytest.approx(case.flow().loss(7.0).item(), rel=1e-12)
        assert distance.item() == pytest.approx(case.flow().distance(7.0).item(), rel=1e-12)


@pytest.mark.parametrize("soft", [False, True])
def test_summaries_can_be_summed_but_not_those_of_other_widths(soft):
    case = make_case([2, 2, 2])
    target = torch.nn.functional.one_hot(case.target).double() if soft else case.target
    part = summarize([(case.features, target)], 3)
    assert sum([part, part]).size == 12
    with pytest.raises(ValueError, match=r"of 1 and \d+ dimensions"):
        summarize([(case.features[:, :1], target)], 3) + part


def test_fewer_soft_labels_than_classes_are_factored_whatever_rounding_says():
    generator = torch.Generator().manual_seed(0)
    for sharpness in (1.0, 3.0):
        for _ in range(400):
            logits = sharpness * torch.randn(3, 4, generator=generator, dtype=torch.float64)
            assert len(LayerPeeled(logits.softmax(1)).singular_values) == 3


def test_empty_batches_are_passed_over():
    features, labels = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
    none = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    found = summarize([none, (features, labels), none], 3)
    assert torch.equal(found.sums, summarize([(features, labels)], 3).sums)
    with pytest.raises(ValueError, match="no examples"):
        summarize([none], 3)


@pytest.mark.parametrize("classes", ["a", 0, -3, 2.5])
def test_a_pass_needs_a_number_of_classes(classes):
    with pytest.raises(ValueError, match="num_classes must be a whole number"):
        summarize([(torch.zeros(2, 3), torch.tensor([0, 1]))], classes)


@pytest.mark.parametrize("soft", [False, True])
def test_features_of_zero_do_not_take_the_scatter_of_tiny_ones(soft):
    labels = torch.arange(6) % 2
    labels = torch.nn.functional.one_hot(labels).double() if soft else labels
    tiny, zero = 1e-200 * torch.randn(6, 4, dtype=torch.float64), torch.zeros(6, 4, dtype=torch.float64)
    merged = summarize([(zero, labels)], 2) + summarize([(tiny, labels)], 2)
    whole = summarize([(torch.cat([zero, tiny]), torch.cat([labels, labels]))], 2)
    assert merged.spread.item() == pytest.approx(whole.spread.item(), rel=1e-12)
    assert merged.spread > 0


def test_a_sum_has_the_wider_dtype_and_nothing_else_can_be_added():
    labels = torch.tensor([0, 1])
    narrow, wide = (summarize([(torch.ones(2, 3, dtype=dtype), labels)], 2) for dtype in (torch.float32, torch.float64))
    assert (narrow + wide).dtype == (wide + narrow).dtype == torch.float64
    with pytest.raises(ValueError, match="only be added to another summary, got int"):
        narrow + 5
