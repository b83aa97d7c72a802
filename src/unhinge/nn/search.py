"""Which class: the prototypes with the largest inner product, without a matrix of all logits.

The prototypes go by in blocks. Each block proposes candidates, by faiss if it is installed (extra ``search``) and by
torch otherwise; the best of them are then scored in float64 and ranked, equal scores by the lower class. What rounding
can have done to a proposal is bounded, and where the bound does not exclude a better class that was not proposed, all
scores of that feature are taken in float64. Both ways therefore give the same answer, and memory does not grow with the
number of classes.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from unhinge.nn.contract import check_floating

__all__ = ["Nearest", "RowSource", "nearest_prototype"]

QUERIES = 1024  # features searched for at a time
SPARE = 8  # candidates beyond k: float32 may swap neighbours that float64 tells apart
ENGINES = ("auto", "faiss", "torch")


class Nearest(NamedTuple):
    r"""The best classes of each feature, best first; both of shape :math:`(*, k)`."""

    scores: Tensor  # inner products
    classes: Tensor  # int64


class RowSource(Protocol):
    """Rows that are made when they are asked for, as those of generated prototypes or of a many-class head."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def rows(self, index: Tensor) -> Tensor: ...

    def blocks(self, size: int) -> Iterator[tuple[int, Tensor]]: ...


Weight = Tensor | RowSource
Engine = Callable[[Tensor, Tensor, int], Nearest]


@torch.no_grad()
def nearest_prototype(
    features: Tensor,
    weight: Weight,
    k: int = 1,
    *,
    block: int = 8192,
    engine: str = "auto",
) -> Nearest:
    r"""The `k` classes with the largest :math:`w_c^\top h`: for rows of one length, the nearest prototypes.

    Exact: every prototype is compared. Of equal scores the lower class comes first.

    Arguments:
        features: :math:`(*, p)`.
        weight: Prototypes :math:`(C, p)`, for example ``head.weight`` or ``ManyClassHead.dense()``, or a source
            of rows, as :class:`~unhinge.nn.GeneratedPrototypes`, which are then made block by block and thrown away.
        k: How many classes, at most C.
        block: Prototypes compared at a time; bounds the memory to that many scores for each of 1,024 features.
        engine: ``"faiss"`` (CPU), ``"torch"`` (any device), or ``"auto"``: faiss where it is installed, everything is
            on the CPU and nothing has more digits than the float32 that faiss compares in.

    Example:
        >>> nearest_prototype(
        ...     torch.tensor([[2.0, 1.0]]),
        ...     torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]),
        ...     k=2,
        ... )
        Nearest(scores=tensor([[2., 2.]]), classes=tensor([[1, 2]]))
    """
    check_floating("features", features, "p")
    if not hasattr(weight, "blocks"):
        check_floating("weight", weight, "p")
    classes, dim = weight.shape
    if features.shape[-1:] != (dim,):
        raise ValueError(f"features must have shape (..., {dim}) as the prototypes, got {tuple(features.shape)}.")
    if not 1 <= k <= classes:
        raise ValueError(f"k must lie between 1 and the number of classes {classes}, got {k}.")
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}.")
    propose = _faiss_candidates if _use_faiss(engine, features, weight) else _torch_candidates
    queries, shape = features.detach().reshape(-1, dim), (*features.shape[:-1], k)
    if not len(queries):
        return Nearest(queries.reshape(shape), queries.long().reshape(shape))
    unit = 1.0  # of the prototypes; with it and one for each feature, no product over- or underflows
    if isinstance(weight, Tensor):
        unit = _power_of_two(_checked("weight", *weight.detach().aminmax())).item()
    parts = []
    for part in queries.split(QUERIES):
        _checked("features", *part.aminmax())
        units = _power_of_two(part.abs().amax(1, keepdim=True))
        near = _search((part.double() / units).to(part.dtype), weight, unit, k, block, propose)
        parts.append(Nearest(near.scores * units * unit, near.classes))
    return Nearest(
        torch.cat([part.scores for part in parts]).to(features.dtype).reshape(shape),
        torch.cat([part.classes for part in parts]).reshape(shape),
    )


def _search(queries: Tensor, weight: Weight, unit: float, k: int, block: int, propose: Engine) -> Nearest:
    """Best classes of queries of order one among prototypes divided by `unit`; scores in float64."""
    width = min(k + SPARE, weight.shape[0])
    candidates: Nearest | None = None
    longest = 0.0
    for start, rows in _blocks(weight, block):
        rows = rows.to(queries.device) / unit
        longest = max(longest, torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).max().item())
        near = propose(queries, rows, min(width, len(rows)))
        near = Nearest(near.scores, near.classes + start)
        candidates = _merged(candidates, near, width)
    assert candidates is not None
    rows = weight.detach()[candidates.classes] if isinstance(weight, Tensor) else weight.rows(candidates.classes)
    best = _ranked(Nearest(_scores(queries[:, None], rows.to(queries.device), unit), candidates.classes), k)
    if width == weight.shape[0]:
        return best
    # No class that was not proposed has a larger rounded score than the last that was. Rounding the p products and sums
    # (and float64 entries to float32) moves a score by less than (p + 2) eps |q| |w|, underflow by p times the smallest
    # number; a k-th score above all that is the k-th score.
    kind = torch.finfo(candidates.scores.dtype)
    lengths = torch.linalg.vector_norm(queries, dim=1, dtype=torch.float64)
    blur = (queries.shape[1] + 2) * (kind.eps * longest * lengths + kind.tiny)
    doubtful = ~(best.scores[:, -1] > candidates.scores[:, -1].double() + blur)
    for which in doubtful.nonzero().flatten().tolist():
        scores, classes = _all_scores(queries[which], weight, unit, k, block)
        best.scores[which], best.classes[which] = scores, classes
    return best


def _all_scores(query: Tensor, weight: Weight, unit: float, k: int, block: int) -> Nearest:
    """The k best of all classes by their scores in float64, (k,) each."""
    if not bool(query.any()):  # every score is 0
        return Nearest(query.new_zeros(k, dtype=torch.float64), torch.arange(k, device=query.device))
    best: Nearest | None = None
    for start, rows in _blocks(weight, block):
        scores = _scores(query, rows.to(query.device), unit)[None]
        near = Nearest(scores, start + torch.arange(len(rows), device=query.device)[None])
        best = _merged(best, near, k)
    assert best is not None
    return Nearest(best.scores[0], best.classes[0])


def _scores(queries: Tensor, rows: Tensor, unit: float) -> Tensor:
    """Inner products in float64, each row summed in the same order wherever it stands: equal rows score equally."""
    return (rows.double() / unit * queries.double()).sum(-1)


def _power_of_two(largest: Tensor) -> Tensor:
    """The power of two below each number, 1 for 0: dividing by it rounds nothing."""
    wide = largest.double()
    return torch.exp2(torch.frexp(torch.where(wide > 0, wide, 1.0)).exponent.double() - 1)


def _checked(name: str, low: Tensor, high: Tensor) -> Tensor:
    """The largest absolute value of a tensor with this minimum and maximum."""
    largest = torch.maximum(low.abs(), high.abs())
    if not bool(torch.isfinite(largest)):
        raise ValueError(f"{name} must be finite, got NaN or infinite values: they have no order.")
    return largest


def _blocks(weight: Weight, size: int) -> Iterator[tuple[int, Tensor]]:
    if not isinstance(weight, Tensor):
        yield from weight.blocks(size)
    else:
        for start in range(0, len(weight), size):
            yield start, weight.detach()[start : start + size]


def _merged(best: Nearest | None, near: Nearest, k: int) -> Nearest:
    """The best k of both for each query."""
    both = near if best is None else Nearest(*(torch.cat(pair, 1) for pair in zip(best, near, strict=True)))
    return _ranked(both, k)


def _ranked(near: Nearest, k: int) -> Nearest:
    """The best k, by score and then by class."""
    by_class = near.classes.argsort(1)
    scores, classes = near.scores.gather(1, by_class), near.classes.gather(1, by_class)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return Nearest(scores.gather(1, best), classes.gather(1, best))


def _torch_candidates(queries: Tensor, rows: Tensor, count: int) -> Nearest:
    dtype = torch.promote_types(torch.promote_types(queries.dtype, rows.dtype), torch.float32)
    scores = queries.to(dtype) @ rows.to(dtype).T
    best, near = scores.topk(count, dim=1)
    crowded = (scores >= best[:, -1:]).sum(1) > count
    if bool(crowded.any()):  # topk breaks ties as it likes: where they matter, a stable sort decides
        near[crowded] = scores[crowded].sort(dim=1, descending=True, stable=True).indices[:, :count]
    return Nearest(best, near)


def _faiss_candidates(queries: Tensor, rows: Tensor, count: int) -> Nearest:
    faiss = importlib.import_module("faiss")
    best, near = faiss.knn(
        queries.float().contiguous().numpy(),
        rows.float().contiguous().numpy(),
        count,
        metric=faiss.METRIC_INNER_PRODUCT,
    )
    return Nearest(torch.from_numpy(best), torch.from_numpy(near))


def _use_faiss(engine: str, features: Tensor, weight: Weight) -> bool:
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
    installed = importlib.util.find_spec("faiss") is not None
    if engine == "faiss" and not installed:
        raise ValueError('engine="faiss" needs faiss: pip install "unhinge[search]". engine="torch" needs nothing.')
    if engine == "faiss" and features.device.type != "cpu":
        raise ValueError(f'engine="faiss" is for the CPU, got features on {features.device}. Use engine="torch".')
    if engine == "auto":
        single = torch.float64 not in (features.dtype, weight.dtype)
        return installed and single and features.device.type == "cpu"
    return engine == "faiss"
