r"""Ordered products of many small matrices, with the scale apart  [eq: ordered-product].

:math:`T_{k-1} \cdots T_1 T_0` for all asked k at once, by a parallel prefix product. Each partial product is divided
by its largest entry and the logarithm kept, so no number of steps overflows  [eq: log-scale].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["normalized", "ordered_products", "power", "scan"]


def normalized(log: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    r"""The same product with its largest entry moved into the logarithm; zero matrices are left alone."""
    size = matrix.detach().abs().amax((-2, -1))
    size = torch.where(size > 0, size, 1.0)
    return log + size.log(), matrix / size[..., None, None]


def scan(matrices: Tensor) -> tuple[Tensor, Tensor]:
    r"""All prefix products :math:`T_i \cdots T_0` of :math:`(n, K, d, d)` as (logs, matrices)."""
    log, product = normalized(torch.zeros(matrices.shape[:-2], dtype=matrices.dtype), matrices)
    shift = 1
    while shift < len(matrices):
        joined = product[shift:] @ product[:-shift]
        later_log, later = normalized(log[shift:] + log[:-shift], joined)
        log, product = torch.cat([log[:shift], later_log]), torch.cat([product[:shift], later])
        shift *= 2
    return log, product


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
        part_log, part = scan(matrices(start, stop))
        part_log, part = normalized(part_log + carry_log, part @ carry)
        asked = ((inside > start) & (inside <= stop)).nonzero().flatten()
        at = inside[asked] - start - 1
        log = log.index_put((asked,), part_log[at])
        result = result.index_put((asked,), part[at])
        carry_log, carry = part_log[-1], part[-1]
    beyond = (flat - last).clamp(min=0)
    if bool((beyond > 0).any()):
        tail_log, tail = power(matrices(settles, settles + 1)[0], beyond)
        log, result = normalized(log + tail_log, tail @ result)
    return log.reshape(*steps.shape, sample.shape[0]), result.reshape(*steps.shape, *sample.shape)
