r"""Momentum in one eigenvalue: the response of ``torch.optim.SGD`` as a two-term recurrence  [eq: momentum].

At a constant rate it is a power of one 2 x 2 step, taken through its two eigenvalues; the slow one is 1 + small, and
small is found without cancellation, so that a trillion steps are as exact as ten. A rate that changes now and then is
constant from one change to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unhinge.theory.linear.products import ordered_products
from unhinge.theory.linear.symbols import in_range, step_rates, until_rest
from unhinge.theory.numerics import EPS, HUGE, LAST_STEP, TINY, falling, log_abs1p, safe_divide
from unhinge.theory.schedules import MOST_SPANS, Constant, Shape, flat_edges
from unhinge.theory.types import Time
from unhinge.theory.validation import check_steps

__all__ = ["Momentum", "MomentumSymbol", "Roots", "stalled"]


@dataclass(frozen=True)
class Roots:
    """The eigenvalues of one step of the recurrence, for K values of the mode's eigenvalue."""

    matrix: Tensor  # (K, 2, 2), the step
    trace: Tensor  # (K,)
    det: Tensor  # (K,)
    slope: Tensor  # (K,), 2 - trace: the slope at 1 of the characteristic polynomial
    square: Tensor  # (K,), discriminant
    root: Tensor  # (K,), its square root, 0 for a complex pair
    small: Tensor  # (K,), the larger eigenvalue minus 1

    @property
    def real(self) -> Tensor:
        return self.square >= 0

    @property
    def mirrored(self) -> Tensor:
        """Whether the other, negative, eigenvalue is the larger in modulus."""
        return self.trace < 0

    @property
    def plain(self) -> Tensor:
        return self.real & ~self.mirrored

    @property
    def lead(self) -> Tensor:
        return torch.where(self.mirrored, (self.trace - self.root) / 2, 1 + self.small)

    @property
    def vanishes(self) -> Tensor:
        """Whether both eigenvalues are zero but for rounding, so that two steps leave nothing: Nesterov's where rate *
        eigenvalue is -1, as at the rate of one over the largest singular value."""
        return torch.maximum(self.trace.detach().abs(), self.det.detach().abs()) <= 8 * EPS

    @property
    def log_modulus(self) -> Tensor:
        """Minus infinity where both eigenvalues are zero."""
        gone = self.vanishes
        plain = torch.log1p(torch.where(self.plain & ~gone, self.small, 0.0))
        lead = torch.where(self.mirrored, log_abs1p(torch.where(gone, 0.0, self.lead - 1)), plain)
        finite = torch.where(self.real, lead, torch.where(self.real | gone, 1.0, self.det).log() / 2)
        return torch.where(gone, -torch.inf, finite)

    def power(self, steps: Tensor, z: Tensor, b: Tensor, entry: int = 0) -> tuple[Tensor, Tensor]:
        """An entry of matrix^steps (z, b), as (log, value), shape (*, K) each; the log is the same for both entries."""
        swept = self.matrix[:, entry, 0] * z + self.matrix[:, entry, 1] * b  # the entry after one step
        return self._sequence(steps, (z, b)[entry], swept)

    def difference(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """(lead^steps - other^steps) / (lead - other), as (log, value), shape (*, K)."""
        return self._sequence(steps, torch.zeros_like(self.trace), torch.ones_like(self.trace))

    def _sequence(self, steps: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """What obeys the recurrence of the step from these two values on, after so many steps, as (log, value)."""
        j, odd = steps[..., None].double(), (steps % 2 == 1)[..., None]
        value = torch.where(self.real, self._straight(j, odd, first, second), self._turning(j, first, second))
        gone = self.vanishes
        if not bool(gone.any()):
            return j * self.log_modulus, value
        log = j * torch.where(gone, 0.0, self.log_modulus)
        third = self.trace * second - self.det * first  # zero, with a slope; later ones have none
        fourth = -self.det * second
        late = torch.where(j == 2, third - third.detach(), torch.where(j == 3, fourth - fourth.detach(), 0.0))
        early = torch.where(j == 0, first, torch.where(j == 1, second, late))
        return torch.where(gone & (j > 3), -HUGE, log), torch.where(gone, early, value)

    def _straight(self, j: Tensor, odd: Tensor, z: Tensor, swept: Tensor) -> Tensor:
        """Real eigenvalues: lead^j z + (lead^j - other^j) / (lead - other) (swept - lead z), over |lead|^j."""
        lead, two = self.lead, self.real & ~self.vanishes
        safe = torch.where(two & (lead != 0), lead, 1.0)
        gap = torch.where(two, torch.where(self.mirrored, -self.root, self.root), 0.0)
        share = gap / safe
        single = share == 1  # the other is zero, and only the first step has a slope by it
        fall = torch.where((j == 0) | single, 0.0, j * log_abs1p(-torch.where(single, 0.0, share)))
        flipped = odd & (share > 1)
        drop = torch.where(flipped, 1 + torch.exp(fall), -torch.expm1(fall))
        drop = torch.where(single, torch.where(j == 0, 0.0, torch.where(j == 1, share, 1.0)), drop)
        spread = torch.where(gap == 0, j / safe, drop / torch.where(gap == 0, 1.0, gap))
        sign = torch.where(odd & (lead < 0), -1.0, 1.0)
        return sign * (z + spread * (swept - lead * z))

    def _turning(self, j: Tensor, z: Tensor, swept: Tensor) -> Tensor:
        """A complex pair: a turn by the same angle in each step, over modulus^j."""
        width = torch.where(self.real, 1.0, -self.square).sqrt()
        angle = torch.atan2(width, self.trace)
        return z * torch.cos(j * angle) + (2 * swept - self.trace * z) * torch.sin(j * angle) / width


def _unscaled(log: Tensor, value: Tensor) -> Tensor:
    return (torch.exp(in_range(log)) * value)[..., 0]


def _power_of(fall: Tensor, steps: Tensor) -> Tensor:
    """(1 - fall)^steps, for any sign of the base."""
    sign = torch.where((fall > 1) & (steps % 2 == 1), -1.0, 1.0)
    gone = fall == 1  # only the first power has a slope there
    log = torch.where((steps == 0) | gone, 0.0, steps * log_abs1p(-torch.where(gone, 0.0, fall)))
    usual = sign * torch.exp(in_range(log))
    return torch.where(gone & (steps > 0), torch.where(steps == 1, 1 - fall, 0.0), usual)


def _gathered(fall: Tensor, steps: Tensor) -> Tensor:
    r""":math:`(1 - q^j) / (1 - q)` with :math:`q = 1 - fall`: the sum of the first j powers of q."""
    gentle = fall < 0.5
    small, large = torch.where(gentle, fall, 0.0), torch.where(gentle, 1.0, fall)
    tiny = small < 1e-5  # there three terms of the series are exact, and have a slope
    safe = torch.where(tiny, 0.25, small)
    slope = torch.where(tiny, 1 + small / 2 + small**2 / 3, -torch.log1p(-safe) / safe)
    return torch.where(gentle, steps * slope * falling(steps * small * slope), (1 - _power_of(large, steps)) / large)


@dataclass(frozen=True)
class Momentum:
    """Options of ``torch.optim.SGD`` beyond its rate; a `decoupled` decay multiplies and stays out of the gradient."""

    factor: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    decoupled: bool = False

    @property
    def stalls(self) -> bool:
        """Whether no gradient enters after the first step: the state runs on for a while and stops."""
        return self.factor > 0 and self.dampening == 1


def stalled() -> ValueError:
    """For limits and rates, which are those of dynamics that go on."""
    return ValueError(
        "with dampening = 1 no gradient enters after the first step, so the state stops where that step takes it, and "
        "there is no limit or rate of training. Ask at() for a late step, or lower dampening."
    )


@dataclass(frozen=True)
class MomentumSymbol:
    r"""``torch.optim.SGD`` with momentum, in one eigenvalue.

    Buffer :math:`b \leftarrow \mu b - (1-\tau)\omega z` (the first step: :math:`b = -\omega z`, undamped), then
    :math:`z \leftarrow (1-\eta\varsigma) z - \eta b`, or with Nesterov
    :math:`z \leftarrow (1-\eta\varsigma) z - \eta(\mu b - \omega z)`, where :math:`\varsigma` is a decoupled decay.
    """

    shape: Shape
    options: Momentum
    shrink: Tensor  # (), decoupled decay common to features and prototypes; 0 if coupled

    def times(self, time: Time) -> Tensor:
        return check_steps(time)

    def matrices(self, rate: Tensor, omega: Tensor) -> Tensor:
        r"""One later step on :math:`(z, b)`, shape :math:`(\#rate, K, 2, 2)`."""
        rate = rate[:, None]
        fresh = (1 - self.options.dampening) * omega
        keep = 1 - rate * self.shrink
        if self.options.nesterov:
            top = keep + rate * (omega + self.options.factor * fresh), -rate * self.options.factor**2
        else:
            top = keep + rate * fresh, -rate * self.options.factor
        rows = [*top, -fresh, torch.full_like(fresh, self.options.factor)]
        return torch.stack([row.expand(len(rate), len(omega)) for row in rows], -1).unflatten(-1, (2, 2))

    def first(self, rate: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        """The state after the special first step from z = 1."""
        push = 1 + self.options.factor if self.options.nesterov else 1.0
        return 1 - rate * self.shrink + rate * push * omega, -omega

    def values(self, time: Tensor, omega: Tensor, roots: Roots | None = None) -> tuple[Tensor, Tensor]:
        """(log-scale, value) of the response at each time and eigenvalue, shape (*, K) each.

        Arguments:
            roots: Those of `omega` at a constant rate, where they are known already.
        """
        time = until_rest(self.shape, time)
        rate = self._first_rate
        z, b = self.first(rate, omega)
        later = (time - 1).clamp(min=0)
        if self.shape.settles == 0:
            log, value = (self.roots(rate, omega) if roots is None else roots).power(later, z, b)
        elif (edges := flat_edges(self.shape, MOST_SPANS)) is not None:
            log, value = self._over_spans(edges, later, omega, z, b)
        else:
            log, product = ordered_products(
                lambda start, stop: self.matrices(step_rates(self.shape, start + 1, stop + 1), omega),
                later,
                max(0, math.ceil(min(self.shape.settles, LAST_STEP)) - 1),
            )
            value = product[..., 0, 0] * z + product[..., 0, 1] * b
        started = (time > 0)[..., None]
        return torch.where(started, log, 0.0), torch.where(started, value, 1.0)

    def _over_spans(
        self, edges: Sequence[int], later: Tensor, omega: Tensor, z: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same from (z, b), which one step leaves, where the rate changes at these steps only."""
        asked, reached = later.reshape(-1), torch.zeros_like(omega)
        logs, values = reached.expand(len(asked), -1), z.expand(len(asked), -1)
        last = int(asked.max()) if asked.numel() else 0
        starts = sorted({max(edge - 1, 0) for edge in edges})  # the first step is taken already
        for start, stop in zip(starts, [*starts[1:], math.inf], strict=True):
            roots = self.roots(step_rates(self.shape, start + 1, start + 2)[0], omega)
            inside = ((asked > start) & (asked <= stop)).nonzero().flatten()
            log, value = roots.power(asked[inside] - start, z, b)
            logs = logs.index_put((inside,), reached + log)
            values = values.index_put((inside,), value)
            if stop >= last:
                break
            end = torch.tensor([int(stop) - start])
            (log, z), (_, b) = (roots.power(end, z, b, entry) for entry in (0, 1))
            size = torch.maximum(z.detach().abs(), b.detach().abs())[0]
            size = torch.where(size > 0, size, 1.0)
            z, b, reached = z[0] / size, b[0] / size, reached + log[0] + size.log()
        return logs.reshape(*later.shape, len(omega)), values.reshape(*later.shape, len(omega))

    @property
    def _first_rate(self) -> Tensor:
        return self.shape.value(torch.zeros(1, dtype=torch.float64))[0]

    def oscillates(self, base: Tensor) -> bool:
        """Whether the response to `base` turns at the last rate instead of growing or decaying."""
        floor = self.shape.floor if math.isfinite(self.shape.floor) else 0.0
        matrix = self.matrices(torch.full((1,), floor, dtype=torch.float64), base.detach()[None])[0, 0]
        trace, det = matrix.trace(), matrix.det()
        return bool(trace**2 < 4 * det) or bool(trace < 0)

    def roots(self, rate: Tensor, omega: Tensor) -> Roots:
        """The two eigenvalues of a later step, from the coefficients of its characteristic polynomial around 1."""
        matrix = self.matrices(rate[None], omega)[0]
        trace = matrix[:, 0, 0] + self.options.factor
        det = matrix[:, 0, 0] * self.options.factor - matrix[:, 0, 1] * matrix[:, 1, 0]
        at_one = (1 - self.options.factor) * rate * self.shrink - rate * self._pull * omega
        slope = 2 - trace
        square = slope**2 - 4 * at_one
        root = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
        # The root nearer to 1 as a quotient: (root - slope) / 2 would cancel where the step is small, which is usual.
        small = torch.where(slope > 0, -2 * at_one / (slope + root).clamp(min=TINY), (root - slope) / 2)
        return Roots(matrix, trace, det, slope, square, root, small)

    @property
    def _pull(self) -> float:
        """What a steady gradient moves, per unit of rate and before 1 / (1 - momentum)."""
        fresh = 1 - self.options.dampening
        return 1 - self.options.factor + self.options.factor * fresh if self.options.nesterov else fresh

    @property
    def _push(self) -> float:
        """How the trace of a step depends on rate times eigenvalue."""
        fresh = 1 - self.options.dampening
        return 1 + self.options.factor * fresh if self.options.nesterov else fresh

    def log(self, time: Tensor, base: Tensor) -> Tensor:
        return self.values(time, base[None])[0][..., 0]

    def factors(self, time: Tensor, base: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([base.expand(gap.shape), base - gap])
        roots = self.roots(self._first_rate, both) if self.shape.settles == 0 else None
        (reference, log), (_, value) = (x.tensor_split(2, -1) for x in self.values(time, both, roots))
        if roots is None:
            return log - reference, value
        # a constant rate: the difference of the two leading roots directly, however small the gap
        (ahead, behind), slope = roots.small.tensor_split(2), roots.slope.tensor_split(2)[0]
        usual = (roots.plain & ~roots.vanishes).tensor_split(2)
        both_usual = usual[0] & usual[1]
        apart = torch.where(both_usual, self._first_rate * gap * (self._pull + self._push * behind), 0.0)
        apart = apart / torch.where(both_usual, (ahead + behind + slope) * (1 + ahead), 1.0)
        direct = (time - 1).clamp(min=0)[..., None] * torch.log1p(-apart)
        return torch.where(both_usual, direct, log - reference), value

    def slope(self, time: Tensor, base: Tensor) -> Tensor:
        # Asked only where two eigenvalues coincide, which takes sigma = 0 and equal decays: the slope multiplies sigma
        # and vanishes from every value. The response is a polynomial of degree k in omega, so a symmetric difference
        # over a width well below 1/k is enough for a derivative of it to be right: of 1e-5 / k its error is 1e-10.
        width = 1e-5 / (1 + time.max().double() if time.numel() else 1.0)
        logs, values = self.values(time, torch.cat([base, base + width, base - width]))
        log, up_log, down_log = logs.tensor_split(3, -1)
        _, up, down = values.tensor_split(3, -1)
        return (up * torch.exp(up_log - log) - down * torch.exp(down_log - log)) / (2 * width)

    def relaxation(self, time: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        time = until_rest(self.shape, time)
        later = (time - 1).clamp(min=0)
        settled = max(0, math.ceil(min(self.shape.settles, LAST_STEP)) - 1)
        before = later.clamp(max=settled)
        affine = self._affine(step_rates(self.shape, 0, 1) * rate, decay, first=True)[0]
        if settled:
            log, product = ordered_products(
                lambda start, stop: self._affine(step_rates(self.shape, start + 1, stop + 1) * rate, decay)[:, None],
                before,
                settled,
            )
            affine = torch.exp(in_range(log))[..., 0, None, None] * (product[..., 0, :, :] @ affine)
        # what a bias of 1 and a pull of 1 have become: (*, 2) each
        bias, buffer = affine[..., 0, [0, 2]].expand(*time.shape, 2), affine[..., 1, [0, 2]].expand(*time.shape, 2)
        if bool((later > settled).any()):
            last = step_rates(self.shape, settled + 1, settled + 2)[0]
            bias = self._steadily(later - before, bias, buffer, last, rate, decay)
        started = time > 0
        return torch.where(started, bias[..., 0], 1.0), torch.where(started, bias[..., 1], 0.0)

    def _affine(self, rates: Tensor, decay: Tensor, first: bool = False) -> Tensor:
        """One step on (bias, buffer, 1) with gradient decay * bias - 1 (or -1 alone if decoupled), (#rates, 3, 3)."""
        coupled = not self.options.decoupled
        fresh = 1.0 if first else 1 - self.options.dampening
        pull = decay if coupled else torch.zeros_like(decay)
        keep = 1 - rates * (0.0 if coupled else decay)
        mu = 0.0 if first else self.options.factor
        zero, ones = torch.zeros_like(rates), torch.ones_like(rates)
        buffer = [fresh * pull * ones, mu * ones, -fresh * ones]
        if self.options.nesterov:
            used = [
                pull * ones + self.options.factor * buffer[0],
                self.options.factor * buffer[1],
                -ones + self.options.factor * buffer[2],
            ]
        else:
            used = buffer
        top = [keep - rates * used[0], -rates * used[1], -rates * used[2]]
        return torch.stack([*top, *buffer, zero, zero, ones], -1).unflatten(-1, (3, 3))

    def _steadily(
        self, steps: Tensor, bias: Tensor, buffer: Tensor, last: Tensor, rate: Tensor, decay: Tensor
    ) -> Tensor:
        r"""The biases (*, 2) after so many steps more at the constant rate `last` times `rate`.

        Powers of the affine step would lose a digit with each tenfold time. Its homogeneous part goes through the roots
        :math:`\ell, o` instead, and a pull of 1 from rest, with :math:`S_j = (\ell^j - o^j) / (\ell - o)`, adds

        .. math:: p_j = \frac{1 - \ell^j}{\lambda} - S_j\,\frac{m_{00} - \ell}{\lambda},

        where :math:`m_{00} - \ell` and :math:`1 - \ell` are known as multiples of the decay :math:`\lambda`, which may
        be zero. A decoupled decay leaves the buffer alone, and :math:`o = \mu`.
        """
        none, moved = torch.zeros_like(decay), rate * decay
        coupled = not self.options.decoupled
        symbol = replace(self, shrink=none if coupled else moved)
        roots = symbol.roots(last, -moved[None] if coupled else none[None])
        j, step = steps.double(), last * rate
        # without momentum the other root is zero, and nothing asks for the difference
        spread = _unscaled(*roots.difference(steps)) if self.options.factor else torch.zeros_like(j)
        if not coupled:  # the buffer sees no bias: the step is a triangle
            kept = (
                _power_of(step * decay, j)[..., None] * bias + rate * roots.matrix[0, 0, 1] * spread[..., None] * buffer
            )
            steady = (1 - self.options.dampening) / (1 - self.options.factor)
            used, fading = (
                (1 + self.options.factor * steady, self.options.factor) if self.options.nesterov else (steady, 1)
            )
            pushed = used * _gathered(step * decay, j) - fading * steady * self.options.factor * spread
            return torch.stack([kept[..., 0], kept[..., 1] + step * pushed], -1)
        parts = [roots.power(steps, bias[..., [k]], rate * buffer[..., [k]]) for k in (0, 1)]
        kept = torch.stack([_unscaled(*part) for part in parts], -1)
        # 1 - lead, in units of the decay
        fall = 2 * step * self._pull / (roots.slope + roots.root)[0].clamp(min=TINY)
        plain = fall * _gathered(fall * decay, j) - spread * (fall - step * self._push)
        rest = _unscaled(*roots.power(steps, torch.ones_like(none)[None], none[None]))
        other = safe_divide(1 - rest, decay)  # a pair that turns, alternates or vanishes: the decay is large
        usual = (roots.plain & ~roots.vanishes)[0]
        return torch.stack([kept[..., 0], kept[..., 1] + torch.where(usual, plain, other)], -1)

    def rest(self, decay: Tensor) -> Tensor:
        # A decoupled decay works against the whole of what the buffer has gathered, a coupled one is gathered with it.
        gathered = self._pull / (1 - self.options.factor) if self.options.decoupled else 1.0
        return gathered / decay

    def memory(self, decay: Tensor, lr: Tensor) -> Tensor:
        return log_abs1p(-decay * lr) if self.options.decoupled else self.growth(-decay, lr)

    def fall(self, base: Tensor, gap: Tensor, lr: Tensor) -> Tensor:
        return self.growth(base - gap, lr) - self.growth(base.expand(gap.shape), lr)

    def growth(self, base: Tensor, lr: Tensor) -> Tensor:
        omega = base.reshape(-1) * lr
        steady = MomentumSymbol(Constant(), self.options, self.shrink * lr)
        modulus = steady.roots(torch.ones((), dtype=torch.float64), omega).log_modulus
        # Without a gradient the buffer stays empty, and a decoupled decay is all there is, however fast it is.
        return torch.where(omega == 0, log_abs1p(-self.shrink * lr), modulus).reshape(base.shape)
