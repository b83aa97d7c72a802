"""Problems to try: hypothesis strategies, and the named ones that every list of cases starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from unhinge import LayerPeeled

__all__ = ["Case", "cases", "make_case", "named_cases", "soft_cases"]


@dataclass(frozen=True)
class Case:
    """A problem and a start, as plain values."""

    target: Tensor
    num_classes: int
    features: Tensor
    weight: Tensor
    bias: Tensor | None = None
    gamma: float | None = None
    feature_decay: float = 0.0
    weight_decay: float = 0.0
    class_weight: Any = None
    lr: tuple[float, float] = (0.1, 0.1)
    prior: Any = None

    def problem(self, **changes: Any) -> LayerPeeled:
        options = {
            "gamma": self.gamma,
            "feature_decay": self.feature_decay,
            "weight_decay": self.weight_decay,
            "class_weight": self.class_weight,
        }
        if self.prior is not None:
            options["prior"] = self.prior
        return LayerPeeled(self.target, self.num_classes, **(options | changes))

    def flow(self, lr: Any = None) -> Any:
        return self.problem().flow(self.features, self.weight, self.bias, lr=self.lr if lr is None else lr)

    def descent(self, lr: Any = None, **options: Any) -> Any:
        rate = self.lr if lr is None else lr
        return self.problem().descent(self.features, self.weight, self.bias, lr=rate, **options)

    def change(self, **changes: Any) -> Case:
        return replace(self, **changes)


def make_case(
    counts: list[int],
    dim: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    bias: bool = False,
    soft: bool = False,
    **options: Any,
) -> Case:
    """Random features, prototypes and label order; `soft` mixes the labels with random distributions."""
    generator = torch.Generator().manual_seed(seed)
    classes, size = len(counts), sum(counts)
    labels = torch.repeat_interleave(torch.arange(classes), torch.tensor(counts))
    labels = labels[torch.randperm(size, generator=generator)]
    features = torch.randn(size, dim, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64).to(dtype)
    target = labels
    if soft:
        noise = torch.rand(size, classes, generator=generator, dtype=torch.float64)
        mixed = torch.nn.functional.one_hot(labels, classes) * 1.5 + noise
        target = mixed / mixed.sum(1, keepdim=True)
    shift = torch.randn(classes, generator=generator, dtype=torch.float64).to(dtype) if bias else None
    return Case(target, classes, features, weight, shift, **options)


def critical(counts: list[int], gamma: float | None) -> float:
    """A decay close to the one at which growth stops, for balanced counts."""
    classes = len(counts)
    g = 1 / (classes - 1) if gamma is None else gamma
    return max(1 + g, abs(1 + g - g * classes)) / (classes * math.sqrt(counts[0]))


def named_cases() -> dict[str, Case]:
    """One of each kind; small enough for every oracle."""
    return {
        "balanced": make_case([3, 3, 3], bias=True),
        "gamma zero": make_case([2, 2, 2, 2], gamma=0.0),
        "gamma at the edge": make_case([2, 2, 2, 2], gamma=1.0),
        "gamma beyond the edge": make_case([2, 2, 2, 2], gamma=1.7),
        "gamma tiny": make_case([2, 2, 2], gamma=1e-7),
        "two classes": make_case([2, 2], gamma=0.6),
        "two classes, gamma one": make_case([2, 2], gamma=1.0),
        "one example per class": make_case([1, 1, 1, 1, 1]),
        "unequal decays": make_case(
            [3, 3, 3], gamma=0.3, feature_decay=0.05, weight_decay=0.2, lr=(0.2, 0.05), bias=True
        ),
        "strong decays": make_case([2, 2, 2], feature_decay=0.9, weight_decay=0.7, bias=True),
        "one decay": make_case([2, 2, 2], gamma=0.2, feature_decay=0.3, lr=(0.03, 0.4)),
        "imbalanced": make_case([5, 3, 1], gamma=0.3, bias=True),
        "imbalanced, tied at the top": make_case([3, 3, 1], gamma=0.4, feature_decay=0.1, weight_decay=0.05),
        "imbalanced, tied below": make_case([4, 2, 2, 1], gamma=0.2, lr=(0.3, 0.1)),
        "imbalanced, default gamma": make_case([4, 2, 1], bias=True, weight_decay=0.02),
        "imbalanced, gamma beyond": make_case([3, 2, 1], gamma=3.0),
        "weighted": make_case([4, 2, 1], gamma=0.4, class_weight=torch.tensor([1.0, 3.0, 0.5]), bias=True),
        "sqrt weights": make_case([6, 3, 1], class_weight="sqrt", bias=True),
        "soft": make_case([3, 3, 3], gamma=0.3, soft=True, bias=True),
        "soft, weighted": make_case([3, 2, 3], soft=True, class_weight=torch.tensor([1.0, 2.0, 0.5]), bias=True),
        "soft, fewer examples than classes": make_case([1, 1, 0, 0, 1], soft=True, gamma=0.2, weight_decay=0.1),
    }


# ---- hypothesis -----------------------------------------------------------------------------------------------------

RATIOS = st.floats(-3, 3).map(lambda x: 10.0**x)


@st.composite
def cases(draw: st.DrawFn, kind: str = "any", max_size: int = 14) -> Case:
    """Integer labels: balanced, imbalanced, tied or weighted, with every special gamma and decay."""
    classes = draw(st.integers(2, 6))
    roomy = max(1, (max_size - classes) // classes)
    shape = draw(st.sampled_from(["balanced", "tied", "imbalanced"])) if kind == "any" else kind
    if shape == "balanced":
        counts = [draw(st.integers(1, min(5, roomy)))] * classes
    elif shape == "long":  # strongly imbalanced: a few examples stand against hundreds
        counts = [draw(st.sampled_from([1, 2, 7, 60, 300])) for _ in range(classes)]
    else:
        limit = 2 if shape == "tied" else 5
        counts = [draw(st.integers(1, limit)) for _ in range(classes)]
        while sum(counts) > max_size - classes and max(counts) > 1:
            counts[counts.index(max(counts))] -= 1
    edge = 2 / (classes - 2) if classes > 2 else 3.0
    gamma = draw(
        st.one_of(
            st.sampled_from([None, 0.0, 1 / (classes - 1), edge, 1.7 * edge, 1e-3, 1e-9, 1e-15]),
            st.floats(0.01, 2.5),
        )
    )
    top = critical(counts, gamma)
    decays = draw(
        st.one_of(
            st.sampled_from([(0.0, 0.0), (0.0, 0.3), (0.2, 0.0), (top, top), (2 * top, top / 2), (3 * top, 2 * top)]),
            st.tuples(st.floats(1e-3, 2.0), st.floats(1e-3, 2.0)),
        )
    )
    rate, ratio = draw(st.sampled_from([0.01, 0.1, 1.0])), draw(st.one_of(st.just(1.0), RATIOS))
    weights: Any = None
    if shape != "balanced":
        weights = draw(st.sampled_from([None, None, "sqrt", "given"]))
        if weights == "given":
            weights = torch.tensor([draw(st.sampled_from([0.001, 0.25, 1.0, 3.0, 40.0])) for _ in range(classes)])
    return make_case(
        counts,
        dim=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 10_000)),
        bias=draw(st.booleans()),
        gamma=gamma,
        feature_decay=decays[0],
        weight_decay=decays[1],
        class_weight=weights,
        lr=(rate * ratio, rate),
    )


@st.composite
def soft_cases(draw: st.DrawFn) -> Case:
    classes = draw(st.integers(2, 5))
    gamma = draw(st.one_of(st.sampled_from([None, 0.0, 1.7]), st.floats(0.01, 2.0)))
    decay = draw(st.sampled_from([(0.0, 0.0), (0.1, 0.02), (0.5, 0.5)]))
    weights = None
    if draw(st.booleans()):
        weights = torch.tensor([draw(st.floats(0.2, 4.0)) for _ in range(classes)], dtype=torch.float64)
    return make_case(
        [draw(st.integers(1, 3)) for _ in range(classes)],
        dim=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 10_000)),
        bias=draw(st.booleans()),
        soft=True,
        gamma=gamma,
        feature_decay=decay[0],
        weight_decay=decay[1],
        class_weight=weights,
        lr=(draw(st.sampled_from([0.01, 0.1, 3.0])), 0.1),
    )
