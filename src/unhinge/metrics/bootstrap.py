"""How sure a measure of detection is: the same measure of sets drawn again, with replacement, from the two sets."""

from __future__ import annotations

import torch
from torch import Tensor

from unhinge.metrics.checks import Numbers, as_numbers
from unhinge.nn.contract import check_size
from unhinge.theory.validation import check_number

__all__ = ["interval_of", "ood_bootstrap"]

NUMBERS_AT_ONCE = 1 << 22  # counts held together: 32 MB


def ood_bootstrap(id_scores: Numbers, ood_scores: Numbers, resamples: int = 200, seed: int = 0) -> dict[str, Tensor]:
    r"""``fpr95``, ``auroc``, ``aupr_in``, ``aupr_out`` of sets drawn again from both sets, shape :math:`(R,)` each.

    The scores are sorted once. A set drawn again only changes how often each of them counts, so a resample costs a few
    running sums. The draws of the in-distribution set depend on `seed` and its size alone: for several unknown sets
    they are the same, and means over those sets can be taken resample by resample.

    Arguments:
        id_scores: Shape :math:`(n,)`; higher means in-distribution.
        ood_scores: Shape :math:`(m,)`.
        resamples: :math:`R`.
        seed: Of the draws.

    Example:
        >>> samples = ood_bootstrap([3.0, 2.0, 1.5, 1.0], [1.2, 0.5, 0.0], resamples=50)
        >>> samples["auroc"].shape, interval_of(samples["auroc"])[1] <= 1.0
        (torch.Size([50]), True)
    """
    inside = as_numbers("id_scores", id_scores, ("n",)).detach().to("cpu", torch.float64)
    outside = as_numbers("ood_scores", ood_scores, ("m",)).detach().to("cpu", torch.float64)
    check_size("resamples", resamples)
    scores, order = torch.cat([inside, outside]).sort(descending=True)
    last = torch.ones_like(scores, dtype=torch.bool)  # of a run of equal scores
    last[:-1] = scores[1:] != scores[:-1]
    known = order < len(inside)
    draws = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    parts: list[dict[str, Tensor]] = []
    size = max(1, NUMBERS_AT_ONCE // len(scores))
    for done in range(0, resamples, size):
        rows = min(size, resamples - done)
        counts = torch.cat([_drawn(rows, len(inside), draws[0]), _drawn(rows, len(outside), draws[1])], 1)[:, order]
        accepted = (counts * known).cumsum(1)[:, last]
        wrongly = (counts * ~known).cumsum(1)[:, last]
        parts.append(_measures(accepted, wrongly, len(inside), len(outside)))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def interval_of(samples: Tensor, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of the samples, by quantiles.

    Example:
        >>> interval_of(torch.arange(101.0), level=0.5)
        (25.0, 75.0)
    """
    check_number("level", level)
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}.")
    tail = (1 - level) / 2
    low, high = samples.double().quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


def _drawn(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """How often each of `size` examples is drawn in as many draws."""
    places = torch.randint(size, (rows, size), generator=generator)
    return torch.zeros(rows, size, dtype=torch.float64).scatter_add_(1, places, torch.ones(rows, size).double())


def _measures(accepted: Tensor, wrongly: Tensor, size: int, others: int) -> dict[str, Tensor]:
    """From how many of each set lie at or above each distinct score, from the highest down; shape (R, K) each."""
    zero = accepted.new_zeros(len(accepted), 1)
    before, wrongly_before = torch.cat([zero, accepted[:, :-1]], 1), torch.cat([zero, wrongly[:, :-1]], 1)
    gained, lost = accepted - before, wrongly - wrongly_before
    # From the other end: what is rejected at or below a score.
    rejected, wrongly_rejected = others - wrongly_before, size - before
    first = (20 * accepted >= 19 * size).to(torch.int8).argmax(1, keepdim=True)
    return {
        "fpr95": wrongly.gather(1, first)[:, 0] / others,
        "auroc": (lost * (accepted + before)).sum(1) / (2 * size * others),
        "aupr_in": (gained * accepted / (accepted + wrongly).clamp(min=1)).sum(1) / size,
        "aupr_out": (lost * rejected / (rejected + wrongly_rejected).clamp(min=1)).sum(1) / others,
    }
