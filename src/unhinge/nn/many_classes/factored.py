r"""C rows that all move at every step of SGD, kept so that a step writes only those of the batch.

For a loss of three numbers with derivatives :math:`a_i, b_i, c_i` by :math:`z_{y_i}`, :math:`S_i`, :math:`R_i`, one
step of SGD with decay :math:`\lambda` is  [eq: three-numbers-step]

.. math:: W \leftarrow W E + \mathbf 1 d^\top - \eta\sum_i a_i e_{y_i} h_i^\top, \qquad
    E = (1 - \eta\lambda) I - 2\eta\sum_i c_i h_i h_i^\top,\quad d = -\eta\sum_i b_i h_i.

The rows are kept as :math:`W = VU + \mathbf 1\omega^\top`. The first two terms then change U (p by p) and
:math:`\omega` only, and the last one the rows of the batch in V. The sum :math:`\bar w` of the rows and their Gram
matrix :math:`G = W^\top W`, which the loss asks for, follow in :math:`O(p^3 + Bp^2)`. Nothing depends on C.

For a loss with a prior :math:`q`, :math:`-z_y + q^\top z`, the same holds with :math:`q` in the place of the ones: the
rows are :math:`VU + q\omega^\top`, and what is kept of them is :math:`\bar w = W^\top q`.

**Precision.** U, :math:`\omega`, :math:`\bar w` and G are float64 whatever the rows are. A row is rounded when it is
stored, and the sums are changed by what was really stored: they stay those of the stored rows, for ever.

**Folding.** A stored entry of V is off by its rounding, and U multiplies that: the row is off by
:math:`\epsilon\,|v|\,|U|` where a dense row would be off by :math:`\epsilon\,|w|`. Where, for the rows of the batch,
the ratio of the two (the componentwise condition number of the product) exceeds 54 for float32, a quarter of its
digits, or 8 for float64, whose sums are taken in V and lose the square of it, or where U leaves the range of floats, U
and :math:`\omega` are multiplied into V, in :math:`O(Cp^2)`, U becomes the identity, and the sums are taken anew from
the rows. How often: U turns from the identity at the rate :math:`2\eta c\|h\|^2` per step, and for the Taylor softmax
and the Z-loss :math:`c` is of the order of 1/C. So the more classes, the rarer, and the mean cost per step stays flat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from unhinge.nn.many_classes.shards import Shards

__all__ = ["FactoredRows", "Pull"]

BLOCK = 1 << 14  # rows per block wherever all of them are visited: bounds the extra memory
ROWS_LOOKED_AT = 64  # of the batch, before all of them are: enough to see how long they are
RANGE = 1e12  # entries of U beyond this or below its inverse leave V too little room in float32


class Pull(NamedTuple):
    """What one or more backward passes ask of the rows: of m single ones, and of all by n examples."""

    labels: Tensor  # (m,) int64: this row moves along
    example: Tensor  # (m,) int64: the feature of this example
    by_own: Tensor  # (m,) times a, the derivative of the objective by this logit
    features: Tensor  # (n, p) float64
    by_total: Tensor  # (n,) the derivatives b
    by_squares: Tensor  # (n,) and c by the sum of the logits and of their squares


class FactoredRows(nn.Module):
    r"""The weight :math:`W = VU + \mathbf 1\omega^\top` of a classifier under exact SGD.

    Arguments:
        rows: The rows to start from that this process owns.
        quadratic: Whether the loss depends on the sum of squares. If not, U is one number, there is no Gram matrix, and
            a step costs :math:`O(Bp)`.
        shards: Which rows of how many these are.
        share: What each class counts in the sum of the logits, shape :math:`(C)`, of all processes; None: 1.

    Example:
        >>> store = FactoredRows(torch.eye(3), quadratic=True, shards=Shards(3))
        >>> h = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
        >>> unit = torch.ones(1, dtype=torch.float64)
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> store.step(
        ...     Pull(torch.tensor([2]), torch.tensor([0]), -unit, h, zero, zero),
        ...     lr=0.5,
        ...     weight_decay=0.0,
        ... )
        >>> store.rows(torch.tensor([2]))
        tensor([[0.5000, 0.0000, 1.0000]], dtype=torch.float64)
    """

    own: Tensor  # (C, p) V, in the dtype of the rows; of a sharded head the rows of this process
    mix: Tensor  # (p, p) U, or () for a loss that is linear in the logits
    common: Tensor  # (p,) omega
    total: Tensor  # (p,) the sum of all rows, each times its share
    gram: Tensor  # (p, p) the sum of w w^T, or () unused
    share: Tensor | None  # (C,) float64; None: ones
    folds: Tensor  # () how often U was multiplied into V

    def __init__(self, rows: Tensor, *, quadratic: bool, shards: Shards, share: Tensor | None = None) -> None:
        super().__init__()
        dim = rows.shape[1]
        wide = torch.ones((), dtype=torch.float64, device=rows.device)
        self.quadratic = quadratic
        self.shards = shards
        self.register_buffer("own", rows)
        self.register_buffer("share", None if share is None else share.detach().to(wide, copy=True))
        self.register_buffer("mix", wide.expand(dim).diag() if quadratic else wide.clone())
        self.register_buffer("common", wide.new_zeros(dim))
        self.register_buffer("total", wide.new_zeros(dim))
        self.register_buffer("gram", wide.new_zeros((dim, dim) if quadratic else ()))
        self.register_buffer("folds", torch.zeros((), dtype=torch.int64, device=rows.device))
        self.recount()

    @property
    def shape(self) -> torch.Size:
        """Classes of this process, and dimension."""
        return self.own.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the stored rows."""
        return self.own.dtype

    def rows(self, index: Tensor) -> Tensor:
        r"""The rows of the classes `index` :math:`(*)` of this process, float64, shape :math:`(*, p)`."""
        return self._mixed(self.own[index].double(), self.mix) + self.added(index + self.shards.start)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """All rows of this process in their own dtype, `size` at a time, each block with the number of its first."""
        for start in range(0, len(self.own), size):
            yield start, self._block(start, size).to(self.own.dtype)

    def stored(self, labels: Tensor) -> Tensor:
        r"""The rows of V of `labels` :math:`(n)`, whoever owns them: :math:`O(Bp)` of traffic."""
        if self.shards.group is None:
            return self.own[labels]
        asked, own_part = self.shards.gather(labels)
        mine = self.shards.mine(asked)
        rows = self.own.new_zeros(len(asked), self.own.shape[1])
        rows[mine] = self.own[asked[mine] - self.shards.start]
        return self.shards.sum(rows)[own_part]

    def gathered(self, labels: Tensor) -> Tensor:
        r"""The rows of `labels` :math:`(n)`, whoever owns them, float64."""
        return self._mixed(self.stored(labels).double(), self.mix) + self.added(labels)

    def added(self, labels: Tensor) -> Tensor:
        r"""What is added to the rows of `labels` :math:`(n)`: :math:`\omega` times their shares, to be broadcast."""
        return self.common if self.share is None else self.share[labels, None] * self.common

    def shares(self, labels: Tensor) -> Tensor:
        """Of `labels`, float64."""
        return self.total.new_ones(labels.shape) if self.share is None else self.share[labels]

    @torch.no_grad()
    def step(self, pull: Pull, lr: float, weight_decay: float) -> None:
        r"""One step of SGD with the gradient of `pull`, for which all processes have to call this together."""
        h = pull.features
        if not all(bool(part.isfinite().all()) for part in pull[2:]):
            raise ValueError(
                "the gradients of this step hold NaN or infinity, and every row would take them on. Nothing was "
                "changed: leave out the batch (head.zero_grad()) and lower the rate."
            )
        kept = 1 - lr * weight_decay
        shift = -lr * (pull.by_total @ h)
        if self.quadratic:
            turn = torch.diag(torch.full_like(self.total, kept))
            turn.addmm_(h.T, pull.by_squares[:, None] * h, alpha=-2 * lr)
        else:
            turn = torch.full_like(self.mix, kept)
        mix = self._mixed(self.mix, turn)
        common = self._mixed(self.common, turn) + shift
        moved = self._mixed(self.total, turn)
        gram = turn @ self.gram @ turn + _both(moved, shift) if self.quadratic else self.gram
        if self.quadratic:
            gram += self.shards.num_classes * torch.outer(shift, shift)
        total = moved + (self.shards.num_classes if self.share is None else self.share.square().sum()) * shift

        mine = self.shards.mine(pull.labels)
        touched, place = torch.unique(pull.labels[mine] - self.shards.start, return_inverse=True)
        before = self.own[touched].double()

        def push(along: Tensor) -> Tensor:
            """Each touched row's share of the gradient, along the features or what stands for them."""
            weight = -lr * pull.by_own[mine, None]
            return torch.zeros_like(before).index_add_(0, place, weight * along[pull.example[mine]])

        # Examples are fewer than the rows of a shortlist: the features are unmixed, not the rows.
        after = (before + push(self._unmixed(h, mix))).to(self.own.dtype)
        self.mix.copy_(mix)
        self.common.copy_(common)
        owned = touched + self.shards.start
        if self.shards.any(self._ill_conditioned(before, after, owned)):
            self.fold()
            before = self.own[touched].double()
            after = (before + push(h)).to(self.own.dtype)
        else:
            self.total.copy_(total)
            self.gram.copy_(gram)
        # What the rows really moved by, rounding included: so the sums never part from the rows. In V, where a product
        # with U is one of p by p: W = V U + s omega^T changes by D U, and W^T W by U^T (M + M^T) U and the mixed term.
        change = after.double() - before
        moved = self.shards.sum(self.shares(owned) @ change)
        self.total += self._mixed(moved, self.mix)
        if self.quadratic:
            half = self.shards.sum((before + change / 2).T @ change)
            self.gram += self.mix.T @ (half + half.T) @ self.mix + _both(self.common, self._mixed(moved, self.mix))
        self.own.index_copy_(0, touched, after)

    @torch.no_grad()
    def fold(self) -> None:
        """Multiply U and omega into the rows, and take the sums anew."""
        for start, block in self.blocks():
            self.own[start : start + len(block)] = block
        self._begin()
        self.folds += 1

    @torch.no_grad()
    def replace(self, rows: Tensor) -> None:
        r"""Other rows :math:`(C', p)` of this process in the place of those there are, as if it began anew."""
        self.own.copy_(rows)
        self._begin()

    def _begin(self) -> None:
        """Let the rows be those of V: U the identity, no omega, and the sums taken anew."""
        self.common.zero_()
        self.mix.copy_(torch.eye(len(self.common)) if self.quadratic else torch.ones(()))
        self.recount()

    @torch.no_grad()
    def recount(self) -> None:
        """The sum of the rows and their Gram matrix, from the rows."""
        total, gram = torch.zeros_like(self.total), torch.zeros_like(self.gram)
        for start in range(0, len(self.own), BLOCK):
            block = self._block(start, BLOCK)
            total += self.shares(torch.arange(len(block), device=block.device) + self.shards.start + start) @ block
            if self.quadratic:
                gram += block.T @ block
        self.total.copy_(self.shards.sum(total))
        self.gram.copy_(self.shards.sum(gram))

    def _block(self, start: int, size: int) -> Tensor:
        """Some consecutive rows, float64."""
        stored = self.own[start : start + size].double()
        classes = torch.arange(len(stored), device=stored.device) + self.shards.start + start
        return self._mixed(stored, self.mix) + self.added(classes)

    def _mixed(self, rows: Tensor, mix: Tensor) -> Tensor:
        return rows @ mix if self.quadratic else rows * mix

    def _unmixed(self, rows: Tensor, mix: Tensor) -> Tensor:
        """x with x U = rows; infinite or wild where U is singular, which counts as ill-conditioned."""
        if not self.quadratic:
            return rows / mix
        unmixed, info = torch.linalg.solve_ex(mix, rows, left=False)
        return unmixed if int(info) == 0 else torch.full_like(rows, torch.inf)

    def _ill_conditioned(self, before: Tensor, after: Tensor, classes: Tensor) -> bool:
        r"""Whether storing `after` as V would cost more digits than these rows can spare; see above."""
        largest = self.mix.abs().amax()
        if not bool(1 / RANGE < largest < RANGE):
            return True
        if after.numel() == 0:
            return False
        if not bool(after.isfinite().all()):  # U is singular, as at lr * weight_decay = 1
            return True
        digits = torch.finfo(self.own.dtype).eps
        allowed = min(digits**-0.25, 8 * math.sqrt(digits / torch.finfo(torch.float64).eps))
        mix, stored = self.mix.abs(), after.double().abs()

        def reached(part: slice) -> Tensor:
            """The largest entry of some rows, before or after the step."""
            added = self.added(classes[part])
            both = (self._mixed(rows[part].double(), self.mix) + added for rows in (before, after))
            return torch.stack([rows.abs().amax() for rows in both]).amax()

        # Most steps are far from it, and then a bound of the left side and some rows of the right one suffice.
        if bool(self._mixed(stored.amax(0), mix).amax() <= allowed * reached(slice(0, ROWS_LOOKED_AT))):
            return False
        return not bool(self._mixed(stored, mix).amax() <= allowed * reached(slice(None)))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        rows = state_dict.get(f"{prefix}own")
        if isinstance(rows, Tensor) and len(rows) == self.shards.num_classes:  # of all processes: take our part
            state_dict = state_dict | {f"{prefix}own": rows[self.shards.start : self.shards.stop]}
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if isinstance(rows, Tensor) and rows.dtype != self.own.dtype:  # rounded, so that the sums that came are others
            self.recount()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        dtype, wide, share = self.own.dtype, (self.mix, self.common, self.total, self.gram), self.share
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # `.half()` is for the rows: in half precision U would change all of them.
        self.mix, self.common, self.total, self.gram = (self._beside_rows(x) for x in wide)
        self.share = None if share is None else self._beside_rows(share)
        if self.own.dtype != dtype:
            self.recount()
        return self

    def _beside_rows(self, x: Tensor) -> Tensor:
        """On the device of the rows; without numbers where there were none, as after `to_empty()`."""
        return torch.empty_like(x, device=self.own.device) if x.is_meta else x.to(self.own.device)


def _both(u: Tensor, v: Tensor) -> Tensor:
    outer = torch.outer(u, v)
    return outer + outer.T
