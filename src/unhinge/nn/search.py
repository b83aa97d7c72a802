"""Which class: the prototypes with the largest inner product, without a matrix of all logits.

The prototypes go by in blocks. Each block proposes candidates, by faiss if it is installed (extra ``search``) and by
torch otherwise; the best of them are then scored in float64 and ranked, equal scores by the lower class. Both ways
therefore give the same answer, and memory does not grow with the number of classes.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from unhinge.nn.generated import GeneratedPrototypes

__all__ = ["Nearest", "nearest_prototype"]

Weight = Tensor | GeneratedPrototypes
QUERIES = 1024  # features searched for at a time
SPARE = 8  # candidates beyond k: float32 may swap neighbours that float64 tells apart
ENGINES = ("auto", "faiss", "torch")


class Nearest(NamedTuple):
    r"""The best classes of each feature, best first; both of shape :math:`(*, k)`."""

    scores: Tensor  # inner products
    classes: Tensor  # int64


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
        weight: Prototypes :math:`(C, p)`, for example ``head.weight`` or ``ManyClassHead.dense()``, or generated ones,
            which are then made block by block and thrown away.
        k: How many classes, at most C.
        block: Prototypes compared at a time; bounds the memory to that many scores for each of 1,024 features.
        engine: ``"faiss"`` (CPU), ``"torch"`` (any device), or ``"auto"``: faiss where it is installed and everything
            is on the CPU.

    Example:
        >>> nearest_prototype(torch.tensor([[2.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), k=2)
        Nearest(scores=tensor([[2., 2.]]), classes=tensor([[1, 2]]))
    """
    classes, dim = weight.shape
    if features.shape[-1:] != (dim,):
        raise ValueError(f"features must have shape (..., {dim}) as the prototypes, got {tuple(features.shape)}.")
    if not 1 <= k <= classes:
        raise ValueError(f"k must lie between 1 and the number of classes {classes}, got {k}.")
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}.")
    propose = _faiss_candidates if _use_faiss(engine, features) else _torch_candidates
    queries = features.detach().reshape(-1, dim)
    parts = [_search(part, weight, k, block, propose) for part in queries.split(QUERIES)] if len(queries) else []
    shape = (*features.shape[:-1], k)
    return Nearest(
        torch.cat([part.scores for part in parts] or [queries]).to(features.dtype).reshape(shape),
        torch.cat([part.classes for part in parts] or [queries.long()]).reshape(shape),
    )


def _search(queries: Tensor, weight: Weight, k: int, block: int, propose: Engine) -> Nearest:
    width = min(k + SPARE, weight.shape[0])
    found: Nearest | None = None
    for start, rows in _blocks(weight, block):
        near = propose(queries, rows.to(queries.device), min(width, len(rows)))
        near = Nearest(near.scores, near.classes + start)
        found = near if found is None else Nearest(*(torch.cat(both, 1) for both in zip(found, near, strict=True)))
        found = _ranked(found, width)
    assert found is not None
    rows = weight.rows(found.classes) if isinstance(weight, GeneratedPrototypes) else weight.detach()[found.classes]
    scores = (rows.to(queries.device).double() * queries.double()[:, None]).sum(-1)
    return _ranked(Nearest(scores, found.classes), k)


def _blocks(weight: Weight, size: int) -> Iterator[tuple[int, Tensor]]:
    if isinstance(weight, GeneratedPrototypes):
        yield from weight.blocks(size)
    else:
        for start in range(0, len(weight), size):
            yield start, weight.detach()[start : start + size]


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


def _use_faiss(engine: str, features: Tensor) -> bool:
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
    installed = importlib.util.find_spec("faiss") is not None
    if engine == "faiss" and not installed:
        raise ValueError('engine="faiss" needs faiss: pip install "unhinge[search]". engine="torch" needs nothing.')
    if engine == "faiss" and features.device.type != "cpu":
        raise ValueError(f'engine="faiss" is for the CPU, got features on {features.device}. Use engine="torch".')
    return installed and engine != "torch" and features.device.type == "cpu"
