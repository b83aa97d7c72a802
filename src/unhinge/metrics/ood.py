r"""Out-of-distribution detection: scores of single examples, and how well a score separates two sets.

A higher score means in-distribution (ID), throughout. Nothing is interpolated and ties are honoured: examples with
equal scores are accepted or rejected together. All counts are integers until the last division.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from unhinge.metrics.checks import Numbers, as_numbers, at_least_single
from unhinge.theory.numerics import safe_norm, widened
from unhinge.theory.validation import check_number

__all__ = ["check_temperature", "log_odds", "ood_metrics", "ood_scores"]


def ood_scores(logits: Numbers, features: Numbers | None = None, temperature: float = 1.0) -> dict[str, Tensor]:
    r"""Three scores per example, each higher for in-distribution examples; differentiable  [eq: ood-scores].

    Arguments:
        logits: :math:`z`, shape :math:`(n, C)`.
        features: :math:`h`, shape :math:`(n, p)`; without them there is no ``norm``.
        temperature: :math:`T` of the softmax and the energy.

    Returns:
        ``softmax``: the log-odds :math:`\log\frac{P}{1-P}` of the largest probability
        :math:`P = \max_c \operatorname{softmax}(z / T)_c` (Hendrycks & Gimpel, 2017, rank by :math:`P`; this ranks
        alike);
        ``energy``: the negative energy :math:`T \log\sum_c e^{z_c / T}` (Liu et al., 2020);
        ``norm``: :math:`\|h\|_2`.
        Shape :math:`(n,)`, in the dtype of the input but at least float32. Log-odds, because :math:`P` itself
        saturates: in float32 all logits that win by more than 17 tie at 1, and ties say nothing about which of two
        examples is stranger.

    Example:
        >>> scores = ood_scores(
        ...     torch.tensor([[2.0, 0.0], [0.1, 0.0]]),
        ...     torch.tensor([[3.0, 4.0], [0.0, 1.0]]),
        ... )
        >>> {
        ...     name: [round(x, 3) for x in score.tolist()]
        ...     for name, score in scores.items()
        ... }
        {'softmax': [2.0, 0.1], 'energy': [2.127, 0.744], 'norm': [5.0, 1.0]}
    """
    check_temperature(temperature)
    z = as_numbers("logits", logits, ("n", "C"))
    z = z.to(at_least_single(z.dtype)) / temperature
    scores = {"softmax": log_odds(z), "energy": temperature * z.logsumexp(1)}
    if features is not None:
        h = as_numbers("features", features, (len(z), "p"))
        scores["norm"] = safe_norm(h.to(at_least_single(h.dtype)), 1)
    return scores


def check_temperature(temperature: float) -> None:
    check_number("temperature", temperature)
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be greater than 0 and finite, got {temperature}.")


def log_odds(z: Tensor) -> Tensor:
    r"""Log-odds of the largest probability, :math:`z_{\max} - \log\sum_{c\ne\max} e^{z_c} = \log\frac{P}{1-P}`.

    Arguments:
        z: Logits, shape :math:`(n, C)`.

    Example:
        >>> log_odds(torch.tensor([[0.0, 0.0], [100.0, 0.0]]))
        tensor([  0., 100.])
    """
    if z.shape[1] == 1:  # a single class has probability 1 everywhere: all tie
        return torch.zeros_like(z[:, 0])
    largest, place = z.max(1, keepdim=True)
    others = z.scatter(1, place, -torch.inf)
    return largest.squeeze(1) - others.logsumexp(1)


def ood_metrics(id_scores: Numbers, ood_scores: Numbers, positive: Literal["id", "ood"] = "id") -> dict[str, float]:
    r"""How well a score tells in-distribution from out-of-distribution examples, as fractions in [0, 1]
    [eq: ood-metrics].

    An example is accepted as in-distribution when its score :math:`\ge` the threshold.

    Arguments:
        id_scores: Scores of the in-distribution set, shape :math:`(n,)`; higher means in-distribution.
        ood_scores: Scores of the out-of-distribution set, shape :math:`(m,)`.
        positive: Whose 95 % the FPR95 is at. ``"id"``, as in the paper: the threshold is the largest that accepts at
            least 95 % of the ID set, and the FPR95 the share of the OOD set it accepts. ``"ood"``: the smallest that
            rejects at least 95 % of the OOD set (score :math:`\le` it), and the share of the ID set it rejects.

    Returns:
        ``fpr95``: see `positive`;
        ``auroc``: :math:`P(s_{in} > s_{out}) + \tfrac12 P(s_{in} = s_{out})`, the same either way;
        ``aupr_in``: average precision :math:`\sum_k (R_k - R_{k-1}) P_k` over the distinct thresholds, with the ID set
        positive, as in the paper (precision then depends on the sizes of the sets);
        ``aupr_out``: the same with the OOD set positive and the scores negated.

    Example:
        >>> ood_metrics([0.9, 0.8, 0.7, 0.4], [0.6, 0.3, 0.2, 0.1])
        {'fpr95': 0.25, 'auroc': 0.9375, 'aupr_in': 0.95, 'aupr_out': 0.95}
    """
    if positive not in ("id", "ood"):
        raise ValueError(f'positive must be "id" or "ood", got {positive!r}.')
    inside, outside = (
        widened(score.detach())
        for score in (as_numbers("id_scores", id_scores, ("n",)), as_numbers("ood_scores", ood_scores, ("m",)))
    )
    accepted, wrongly = _accepted(inside, outside.to(inside.device))
    # Read from the other end, with the sign turned: what is rejected of the OOD set, and what of the ID set.
    rejected, wrongly_rejected = _accepted(-outside.to(inside.device), -inside)
    fpr = _false_positives(accepted, wrongly) if positive == "id" else _false_positives(rejected, wrongly_rejected)
    return {
        "fpr95": fpr,
        "auroc": _area(accepted, wrongly),
        "aupr_in": _average_precision(accepted, wrongly),
        "aupr_out": _average_precision(rejected, wrongly_rejected),
    }


def _accepted(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """How many of each set lie at or above each distinct score, from the highest score down."""
    scores, order = torch.cat([positives, negatives]).sort(descending=True)
    hits = (order < len(positives)).long().cumsum(0)
    last = torch.ones_like(scores, dtype=torch.bool)  # of a run of equal scores
    last[:-1] = scores[1:] != scores[:-1]
    counts = torch.arange(1, len(scores) + 1, device=scores.device)
    return hits[last], (counts - hits)[last]


def _false_positives(true: Tensor, false: Tensor) -> float:
    first = int((20 * true >= 19 * true[-1]).long().argmax())  # 95 %, in whole numbers
    return int(false[first]) / int(false[-1])


def _area(true: Tensor, false: Tensor) -> float:
    zero = true.new_zeros(1)
    width, height = torch.diff(false, prepend=zero), true + torch.cat([zero, true[:-1]])
    return int((width * height).sum()) / (2 * int(true[-1]) * int(false[-1]))


def _average_precision(true: Tensor, false: Tensor) -> float:
    step = torch.diff(true, prepend=true.new_zeros(1)).double()
    return float((step * true / (true + false)).sum() / true[-1])
