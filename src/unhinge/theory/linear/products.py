r"""Ordered products of many small matrices, with the scale apart  [eq: ordered-product].

:math:`T_{k-1} \cdots T_1 T_0` for all asked k at once: products of the steps between two asked ones, by pairs, then a
parallel prefix product of those. Each partial product is divided by its largest entry and the logarithm kept, so no
number of steps overflows  [eq: log-scale].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["normalized", "ordered_products", "power", "scan"]


def normalized(log: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    r"""The same product with its largest entry moved into the logarithm; zero matrices are left alone."""
    log, entries = _normalized(log, _by_entry(matrix))
    return log, _by_matrix(entries)


def scan(matrices: Tensor) -> tuple[Tensor, Tensor]:
    r"""All prefix products :math:`T_i \cdots T_0` of :math:`(n, K, d, d)` as (logs, matrices)."""
    log, entries = _scan(*_normalized(_no_log(matrices), _by_entry(matrices).contiguous()))
    return log, _by_matrix(entries)


# Below, matrices are held entry by entry, (d, d, n, K): a product of thousands of them is then a few long operations.


def _by_entry(matrices: Tensor) -> Tensor:
    return matrices.movedim((-2, -1), (0, 1))


def _by_matrix(entries: Tensor) -> Tensor:
    return entries.movedim((0, 1), (-2, -1))


def _no_log(matrices: Tensor) -> Tensor:
    return torch.zeros(matrices.shape[:-2], dtype=matrices.dtype)


def _normalized(log: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
    size = entries.detach().abs().amax((0, 1))
    size = torch.where(size > 0, size, 1.0)
    return log + size.log(), entries / size


def _times(left: Tensor, right: Tensor) -> Tensor:
    result = left[:, 0, None] * right[0]
    for k in range(1, len(right)):
        result = result + left[:, k, None] * right[k]
    return result


def _scan(log: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
    shift = 1
    while shift < len(log):
        product = _times(entries[:, :, shift:], entries[:, :, :-shift])
        later_log, later = _normalized(log[shift:] + log[:-shift], product)
        log, entries = torch.cat([log[:shift], later_log]), torch.cat([entries[:, :, :shift], later], 2)
        shift *= 2
    return log, entries


def _joined(log: Tensor, entries: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The product of each run of so many matrices, by pairs."""
    while len(log) > len(lengths):
        halves = (lengths + 1) // 2
        ends, later_ends = lengths.cumsum(0), halves.cumsum(0)
        place = torch.arange(int(later_ends[-1])) - torch.repeat_interleave(later_ends - halves, halves)
        first = 2 * place + torch.repeat_interleave(ends - lengths, halves)
        alone = first + 1 == torch.repeat_interleave(ends, halves)  # the last of an odd run
        second = torch.where(alone, first, first + 1)
        pair_log, pair = _normalized(log[first] + log[second], _times(entries[:, :, second], entries[:, :, first]))
        log = torch.where(alone[:, None], log[first], pair_log)
        entries = torch.where(alone[:, None], entries[:, :, first], pair)
        lengths = halves
    return log, entries


def power(matrix: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    r"""`matrix` (K, d, d) to each of the powers (m,), as (logs (m, K), matrices (m, K, d, d)), by squaring."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand(len(exponent), *matrix.shape)
    log, result = torch.zeros(len(exponent), len(matrix), dtype=matrix.dtype), eye
    square_log, square = normalized(torch.zeros(len(matrix), dtype=matrix.dtype), matrix)
    left = exponent.clone()
    while bool((left > 0).any()):
        odd = (left % 2 == 1)[:, None]
        next_log, following = normalized(log + square_log, square @ result)
        log = torch.where(odd, next_log, log)
        result = torch.where(odd[..., None, None], following, result)
        square_log, square = normalized(2 * square_log, square @ square)
        left = left // 2
    return log, result


def ordered_products(
    matrices: Callable[[int, int], Tensor], steps: Tensor, settles: int, chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    r"""Products of the matrices of steps 0 .. k - 1 for each k of `steps`.

    Arguments:
        matrices: `matrices(start, stop)` gives those of the steps start .. stop - 1, shape :math:`(m, K, d, d)`.
        steps: Whole numbers, any shape.
        settles: From this step on all matrices are equal.

    Returns:
        Logarithmic scales :math:`(*, K)` and matrices :math:`(*, K, d, d)`.
    """
    flat = steps.reshape(-1)
    sample = matrices(0, 1)[0]
    carry_log = torch.zeros(sample.shape[0], dtype=sample.dtype)
    carry = torch.eye(sample.shape[-1], dtype=sample.dtype).expand_as(sample)
    last = min(int(flat.max()) if flat.numel() else 0, settles)
    inside = flat.clamp(max=last)
    log = carry_log.expand(len(flat), -1)
    result = carry.expand(len(flat), *sample.shape)
    for start in range(0, last, chunk):
        stop = min(start + chunk, last)
        asked = ((inside > start) & (inside <= stop)).nonzero().flatten()
        marks = torch.cat([inside[asked], torch.tensor([stop])]).unique()  # what lies between is not asked for
        between = matrices(start, stop)
        each = _normalized(_no_log(between), _by_entry(between).contiguous())
        part_log, entries = _scan(*_joined(*each, marks.diff(prepend=torch.tensor([start]))))
        part_log, part = normalized(part_log + carry_log, _by_matrix(entries) @ carry)
        at = torch.searchsorted(marks, inside[asked])
        log = log.index_put((asked,), part_log[at])
        result = result.index_put((asked,), part[at])
        carry_log, carry = part_log[-1], part[-1]
    beyond = (flat - last).clamp(min=0)
    if bool((beyond > 0).any()):
        tail_log, tail = power(matrices(settles, settles + 1)[0], beyond)
        log, result = normalized(log + tail_log, tail @ result)
    return log.reshape(*steps.shape, sample.shape[0]), result.reshape(*steps.shape, *sample.shape)
