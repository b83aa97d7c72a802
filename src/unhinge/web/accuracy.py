r"""Accuracy along a balanced path, from inner products that are kept while sliders move.

With one pole (equal sizes, or weights that make up for them) features and centred prototypes are
:math:`h_i = k\,r_i + (u\,x_c + v\,y_c + e\,x_r + f\,y_r)/\sqrt{n_c}` and :math:`w_j = a\,x_j + b\,y_j`, where only the
scalars depend on time, gamma, decays and rates. So :math:`r_i^\top x_j, r_i^\top y_j` are computed once per start,
and a moment costs a few additions per logit instead of a product of matrices. Other paths are asked themselves.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.theory import LinearPath
from unhinge.theory.linear.spectrum import HardSpectrum

__all__ = ["accuracy", "moment_cost"]

KEPT = 4
_KEPT: OrderedDict[tuple[int, int, tuple[int, ...]], tuple[Tensor, Tensor, _Products]] = OrderedDict()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class _Products:
    rest: Tensor  # (2, n, C), of what the modes do not see with x and with y
    small: Tensor  # (2, 2, C, C), of x and y with x and y
    root: Tensor  # (C,), sqrt n_c
    labels: Tensor  # (n,)


def _quick(path: LinearPath) -> bool:
    one_pole = isinstance(path.spectrum, HardSpectrum) and len(path.spectrum.beta) == 1
    return one_pole and path.start.bias is None and path.start.features is not None


def moment_cost(path: LinearPath) -> float:
    """Multiplications, or as slow things, for one moment of :func:`accuracy`."""
    assert path.start.features is not None
    size, classes = len(path.start.features), len(path.start.weight)
    each = 8 * size * classes if _quick(path) else size * classes * min(path.start.weight.shape[1], 2 * classes)
    return max(float(each), 4e5)  # calling torch is not free either


def accuracy(path: LinearPath, moments: Tensor) -> Tensor:
    """What ``path.accuracy(moments)`` gives, quicker where the path is balanced."""
    if not _quick(path):
        return path.accuracy(moments)
    kept = _products(path)
    start = path.start
    classes = len(start.weight)
    blocks = path.propagator.blocks(path.propagator.times(moments))
    matrix = blocks.relative()  # (T, 3, 2, 2): class differences, their common part, the rest
    head = blocks.matrix[:, 0, 1, :]  # of the differences alone: a common factor of all logits is immaterial
    x, y = start.x[:classes], start.y[:classes]
    assert isinstance(path.spectrum, HardSpectrum)
    common = torch.cat([start.x[classes:], start.y[classes:]]) * path.spectrum.right[0, 0] / classes**0.5  # (2, p)
    across = torch.stack([common @ x.mT, common @ y.mT])  # (2 of w, 2 of h, C)
    within = torch.einsum("ta,tb,abcj->tcj", matrix[:, 0, 0, :], head, kept.small)
    shared = torch.einsum("ta,tb,baj->tj", matrix[:, 1, 0, :], head, across)
    block = (within + shared[:, None, :]) / kept.root[:, None]
    hits = []
    for keep, pair, small in zip(matrix[:, -1, 0, 0].tolist(), head.tolist(), block, strict=True):
        logits = small[kept.labels]
        if keep:
            logits.add_(kept.rest[0], alpha=keep * pair[0]).add_(kept.rest[1], alpha=keep * pair[1])
        hits.append((logits.argmax(1) == kept.labels).double().mean())
    return torch.stack(hits)


def _products(path: LinearPath) -> _Products:
    start = path.start
    assert start.features is not None
    assert start.targets is not None
    counts = tuple(int(count) for count in start.counts)
    key = (id(start.features), id(start.weight), counts)
    with _LOCK:
        found = _KEPT.get(key)
        if found is not None and found[0] is start.features and found[1] is start.weight:
            _KEPT.move_to_end(key)
            return found[2]
    classes = len(counts)
    x, y = start.x[:classes], start.y[:classes]
    rest = start.features - start.targets.expand(start.rows)
    products = _Products(
        torch.stack([rest @ x.mT, rest @ y.mT]),
        torch.stack([torch.stack([x @ x.mT, x @ y.mT]), torch.stack([y @ x.mT, y @ y.mT])]),
        start.counts.double().sqrt(),
        start.targets.labels,
    )
    with _LOCK:
        _KEPT[key] = (start.features, start.weight, products)
        while len(_KEPT) > KEPT:
            _KEPT.popitem(last=False)
    return products
