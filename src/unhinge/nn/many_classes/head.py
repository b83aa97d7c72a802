r"""The head: a loss and an optimizer in one, because its gradient has a C-by-p shape that is never formed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from unhinge.nn.contract import (
    as_class_weight,
    as_tensor,
    check_dtype,
    check_not_negative,
    check_positive,
    check_prior,
    check_prior_sum,
    check_reduction,
    check_size,
)
from unhinge.nn.many_classes.factored import FactoredRows, Pull
from unhinge.nn.many_classes.rules import head_loss, prior_loss
from unhinge.nn.many_classes.shards import Shards
from unhinge.nn.many_classes.shortlist import shortlist_softmax_rule
from unhinge.nn.precision import full_precision
from unhinge.nn.reduction import reduce_loss
from unhinge.nn.search import Nearest, nearest_prototype
from unhinge.nn.three_numbers import Rule

__all__ = ["ManyClassHead"]

ROWS_ASKED = 1 << 12  # classes whose neighbors are searched for together
ROWS_DRAWN = 1 << 14  # rows drawn together


class ManyClassHead(nn.Module):
    r"""A linear classifier with its own exact SGD, at a cost per step that does not depend on the number of classes.

    Equal to ``nn.Linear(in_features, num_classes, bias=bias)`` under the loss from logits and
    ``torch.optim.SGD(lr, weight_decay=weight_decay)``, up to rounding  [eq: three-numbers-step]. Call
    ``loss = head(features, target)``, ``loss.backward()`` and ``head.step(lr)``. The gradient flows on into the
    features; several backward passes before a step add up, and so does ``torch.autograd.grad``. A second derivative is
    refused. To leave a batch out, call :meth:`zero_grad` of the head itself: those of a model around it and of an
    optimizer look at parameters, of which it has none. A step costs :math:`O(Bp^2 + p^3)` for a batch of B (for the
    unhinged loss :math:`O(Bp)`), after Vincent, de Brébisson and Bouthillier (arXiv 1412.7091, 1606.08061).

    **Which loss.** With the unhinged loss the classes cannot be told apart where they look alike: any balanced
    prototypes minimise it. Alone ``"z"`` (arXiv 1604.08859) was the best on 20,902 characters, within a point of
    cross-entropy; ``"taylor_softmax"``, finished by :meth:`restart` and a `shortlist`, ended above both.
    ``"spherical_softmax"`` and ``"squared"`` are the others of the family.

    Arguments:
        in_features: Dimension :math:`p` of the features.
        num_classes: :math:`C`.
        loss: ``"unhinged"``, ``"taylor_softmax"``, ``"z"``, ``"squared"``, ``"spherical_softmax"``, or a function
            ``f(own, total, squares, num_classes)`` of the true logits, the sums of the logits and the sums of their
            squares, each :math:`(n)` and float64, that returns the losses :math:`(n)`. It is differentiated by
            autograd.
        weight_decay: :math:`\lambda \ge 0`, as in ``torch.optim.SGD``.
        momentum: Has to be 0. With momentum a row that is not in the batch moves by a product of matrices, one per step
            since it was last seen, and they have no short form.
        bias: Whether there is a bias per class. It is decayed as the weight is, which is what SGD does to a Linear.
        gamma: Of ``"unhinged"``; ``None`` means :math:`1/(C-1)`.
        prior: Of ``"unhinged"``: a vector :math:`q` of shape :math:`(C)` that sums to 1, such as the shares of the
            classes; the loss is then :math:`-z_y + q^\top z`, at the same cost. It excludes `gamma`.
        slope, offset: Of ``"z"``; ``None`` means those of :class:`~unhinge.nn.ZLoss`.
        epsilon: Of ``"spherical_softmax"``; ``None`` means that of :class:`~unhinge.nn.SphericalSoftmaxLoss`.
        weight: The rows to start from, shape :math:`(C, p)`; ``None`` draws them as ``nn.Linear`` does. The bias starts
            from 0 then, and from a draw as in ``nn.Linear`` otherwise.
        generator: Draws the start; ``None`` uses torch's global generator.
        process_group: Splits the rows over the processes of a ``torch.distributed`` group. Each process passes its own
            examples, and all call ``forward`` and ``step`` together. The step follows the mean of their objectives, as
            in DistributedDataParallel. The state of a process holds its own rows; see :meth:`joined`.
        device, dtype: Of the rows, as in ``nn.Linear``. What is p by p is float64 whatever they are.

    Example:
        >>> head = ManyClassHead(
        ...     3, 100_000, "taylor_softmax", generator=torch.Generator().manual_seed(0)
        ... )
        >>> features = torch.ones(2, 3, requires_grad=True)
        >>> target = torch.tensor([7, 70_000])
        >>> for _ in range(3):
        ...     loss = head(features, target)
        ...     loss.backward()
        ...     head.step(lr=0.5)
        >>> features.grad.shape, head.rows(target).shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        loss: str | Rule = "unhinged",
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        bias: bool = False,
        gamma: float | None = None,
        prior: Tensor | None = None,
        slope: float | None = None,
        offset: float | None = None,
        epsilon: float | None = None,
        weight: Tensor | None = None,
        generator: torch.Generator | None = None,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("in_features", in_features)
        check_size("num_classes", num_classes)
        check_dtype(dtype)
        check_not_negative("weight_decay", weight_decay)
        if momentum != 0:
            raise ValueError(
                f"momentum is not supported, got {momentum}: a row would need the product of all steps since it was "
                "last seen. Use momentum=0 here; the network in front may have its own optimizer."
            )
        self.in_features = in_features
        self.out_features = num_classes
        self.weight_decay = weight_decay
        self.with_bias = bias
        prior = as_class_weight(prior, "prior")
        check_prior(prior, num_classes, gamma)
        check_prior_sum(prior)
        if prior is not None and loss != "unhinged":
            raise ValueError(f'a prior is for the loss "unhinged", but the loss is {loss!r}. Leave one of them out.')
        # With q in the place of the ones, "the sum of the logits" is q . z, and gamma is 1 beside a true logit of -1.
        self.loss = (
            head_loss(loss, num_classes, gamma=gamma, slope=slope, offset=offset, epsilon=epsilon)
            if prior is None
            else prior_loss()
        )
        shards = Shards(num_classes, process_group)
        if weight is None:
            rows = _drawn(in_features, bias, shards, generator, device, dtype)
        elif as_tensor("weight", weight).shape != (num_classes, in_features) or not weight.is_floating_point():
            raise ValueError(
                f"weight must be a floating tensor of shape ({num_classes}, {in_features}), one row per class, got "
                f"{weight.dtype} of shape {tuple(weight.shape)}."
            )
        else:
            rows = weight.detach()[shards.start : shards.stop].to(device=device, dtype=dtype, copy=True)
            rows = F.pad(rows, (0, 1)) if bias else rows
        self.store = FactoredRows(rows, quadratic=self.loss.quadratic, shards=shards, share=prior)
        self._pending: list[Pull] = []  # of each backward pass since the last step

    @staticmethod
    def joined(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The state of a head in one process from those of all processes of a sharded one, in the order of their ranks.

        It can be loaded into a head of any number of processes: each takes its own rows.

        Example:
            >>> head = ManyClassHead(3, 10, "taylor_softmax")
            >>> head.load_state_dict(ManyClassHead.joined([head.state_dict()]))
            <All keys matched successfully>
        """
        if not states or any(state.keys() != states[0].keys() for state in states):
            raise ValueError("states must hold the state of every process of one head, in the order of their ranks.")
        rows = [name for name in states[0] if name.endswith("store.own")]
        if len(rows) != 1:
            raise ValueError(f"a state of a ManyClassHead has its rows as 'store.own'; got {', '.join(states[0])}.")
        return {**states[0], rows[0]: torch.cat([state[rows[0]] for state in states])}

    @property
    def num_classes(self) -> int:
        """:math:`C`, another name of `out_features`."""
        return self.out_features

    @property
    def weight_sum(self) -> Tensor:
        r"""The sum of all rows, shape :math:`(p)`, at no cost; with a prior, their mean under it."""
        return self.store.total[: self.in_features].to(self.store.own.dtype)

    def forward(
        self, features: Tensor, target: Tensor, reduction: str = "mean", *, shortlist: Tensor | None = None
    ) -> Tensor:
        r"""The loss of `features` :math:`(*, p)` with labels `target` :math:`(*)`, without logits.

        For class weights, take ``reduction="none"`` and weigh the losses: the step follows whatever is differentiated.

        To finish a training with a loss near cross-entropy, pass a `shortlist` of classes :math:`(*, k)` for each
        example, such as ``near[target]`` with ``near = head.neighbors(64)`` taken once, when half of the steps are done
        and the rows have been replaced by :meth:`restart`. The loss is then, whatever that of the head, the softmax
        over them and the true class, with all other classes summed to second order  [eq: shortlist-softmax]; the step
        follows it as exactly, at :math:`O(Bkp^2)`.
        """
        check_reduction(reduction)
        losses = self._losses(features, target, self._receive, shortlist)
        result = reduce_loss(losses, reduction, losses.numel())
        return result.to(torch.promote_types(features.dtype, self.store.own.dtype))

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step of SGD with the gradients of all backward passes since the last; nothing if there were none."""
        check_not_negative("lr", lr)
        shards = self.store.shards
        if not shards.any(bool(self._pending)):
            return
        pull = self._gathered_pull()
        self._pending.clear()
        self.store.step(pull, lr, self.weight_decay)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the backward passes since the last step. That of a model around the head does not reach it."""
        super().zero_grad(set_to_none)
        self._pending.clear()

    @torch.no_grad()
    def restart(self, means: Tensor, strength: float = 2.0) -> None:
        r"""Put class means in the place of the rows: a short cut past the slow start of a second-order loss.

        With the means :math:`m_c` of the features of each class and their mean :math:`\bar m` the logits become
        :math:`z_c = s\,(m_c - \bar m)^\top (h - \bar m)`, with :math:`s` such that the true logit of a class mean is
        `strength` times :math:`\log C` on average: beyond that the softmax over all classes is sure  [eq: restart].
        Without a bias, which would carry it, the term of :math:`\bar m` is left out. Backward passes since the last
        step are forgotten.

        Arguments:
            means: Of the features of all training examples by class, shape :math:`(C, p)`: one pass without gradients.
            strength: The true logit in units of :math:`\log C`. Where a class is seen a dozen times, 4 was better.

        Example:
            >>> head = ManyClassHead(2, 3, "taylor_softmax")
            >>> head.restart(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]))
            >>> head.dense()
            tensor([[ 3.2958,  0.0000],
                    [-3.2958,  0.0000],
                    [ 0.0000,  0.0000]])
        """
        if not as_tensor("means", means).is_floating_point():
            raise ValueError(f"means must be a floating tensor, got {means.dtype}. Convert: means.float().")
        if means.shape != (self.num_classes, self.in_features):
            raise ValueError(
                f"means must have shape ({self.num_classes}, {self.in_features}), one row per class, "
                f"got {tuple(means.shape)}."
            )
        check_positive("strength", strength)
        unit = means.detach().abs().max().double().item()  # so that no square leaves the range
        if not math.isfinite(unit):
            raise ValueError("means hold NaN or infinity: a class without an example, or features that overflowed.")
        wide = means.detach().to(self.store.total) / (unit or 1.0)
        center = wide.mean(0)
        rows = wide - center
        length = rows.square().sum(1).mean().item()
        if length <= torch.finfo(means.dtype).eps * wide.square().sum(1).mean().item():
            raise ValueError("the class means are all the same, so they say nothing about the classes. Train on first.")
        rows *= strength * math.log(self.num_classes) / length
        center, rows = center * unit, rows / unit
        if self.with_bias:
            rows = torch.cat([rows, -(rows @ center)[:, None]], 1)
        self.store.replace(rows[self.store.shards.start : self.store.shards.stop])
        self._pending.clear()

    @torch.no_grad()
    def neighbors(self, k: int) -> Tensor:
        r"""For each class the `k` others whose rows have the largest inner product with its own, shape :math:`(C, k)`.

        By exact search, :math:`O(C^2 p)`: once in a while, not at every step.
        """
        check_size("k", k)
        if k >= self.num_classes:
            raise ValueError(f"k must lie between 1 and {self.num_classes - 1}, the number of other classes, got {k}.")
        nearest = []
        for first in range(0, self.num_classes, ROWS_ASKED):
            index = torch.arange(first, min(first + ROWS_ASKED, self.num_classes), device=self.store.own.device)
            near = self._nearest(F.pad(self.rows(index), (0, int(self.with_bias))), k + 1).classes  # without biases
            # Without the class itself, which need not be among its own k + 1: then the last one goes.
            others = near != index[:, None]
            others[:, -1] &= ~others.all(1)
            nearest.append(near[others].view(-1, k))
        return torch.cat(nearest)

    @torch.no_grad()
    def rows(self, target: Tensor) -> Tensor:
        r"""The weight of the classes `target` :math:`(*)`, shape :math:`(*, p)`."""
        return self._looked_up(target)[..., : self.in_features]

    @torch.no_grad()
    def biases(self, target: Tensor) -> Tensor:
        r"""The bias of the classes `target` :math:`(*)`, shape :math:`(*)`; zero for a head without."""
        if not self.with_bias:
            return torch.zeros(self._checked(target).shape, dtype=self.store.own.dtype, device=self.store.own.device)
        return self._looked_up(target)[..., -1]

    @torch.no_grad()
    def dense(self) -> Tensor:
        r"""The whole weight, shape :math:`(C, p)`: a copy, for evaluation or export."""
        return self._whole()[:, : self.in_features]

    @torch.no_grad()
    def linear(self) -> nn.Linear:
        """The classifier as an ``nn.Linear``, a copy: to go on with another loss, or to export."""
        whole = self._whole()
        made = nn.Linear(
            self.in_features, self.num_classes, bias=self.with_bias, device=whole.device, dtype=whole.dtype
        )
        made.weight.copy_(whole[:, : self.in_features])
        if self.with_bias:
            made.bias.copy_(whole[:, -1])
        return made

    def logits(self, features: Tensor) -> Tensor:
        r"""The scores of all classes, shape :math:`(*, C)`; for many classes use :meth:`predict`."""
        features, whole = self._rows_checked(features), self._whole()
        dtype = torch.promote_types(features.dtype, whole.dtype)
        return F.linear(self._extended(features).to(dtype), whole.to(dtype))

    def log_prob(self, features: Tensor, target: Tensor) -> Tensor:
        r"""The logarithm of the probability of `target` :math:`(*)`, shape :math:`(*)`, without logits.

        For the Taylor and the spherical softmax; the other losses are not those of a probability.
        """
        if not self.loss.is_probability:
            raise ValueError(
                f"the loss {self.loss.name!r} is not that of a probability. "
                'Use loss="taylor_softmax" or loss="spherical_softmax".'
            )
        losses = self._losses(features, target, None)
        return -losses.to(torch.promote_types(features.dtype, self.store.own.dtype))

    @torch.no_grad()
    def predict(self, features: Tensor, k: int = 1) -> Nearest:
        r"""The `k` classes with the largest logits, best first: ``scores`` and ``classes``, both :math:`(*, k)`.

        Exact, through :func:`~unhinge.nn.nearest_prototype`: the rows are made block by block, and neither they nor the
        logits of all classes are ever in memory.
        """
        check_size("k", k)
        if k > self.num_classes:
            raise ValueError(f"k must lie between 1 and the number of classes {self.num_classes}, got {k}.")
        return self._nearest(self._extended(self._rows_checked(features)), k)

    def _nearest(self, queries: Tensor, k: int) -> Nearest:
        """The `k` stored rows, biases included, with the largest inner product with each query."""
        shards = self.store.shards
        if shards.group is None:
            return nearest_prototype(queries, self.store, k)
        asked, own_part = shards.gather(queries.reshape(-1, queries.shape[-1]))
        count = len(self.store.own)
        scores = asked.new_full((len(asked), k), -torch.inf)
        classes = torch.full((len(asked), k), self.num_classes)
        if count:
            near = nearest_prototype(asked, self.store, min(k, count))
            scores[:, : near.scores.shape[1]] = near.scores
            classes[:, : near.scores.shape[1]] = near.classes + shards.start
        # (ranks, n, k) to (n, ranks * k): candidates of lower ranks are lower classes, so a stable sort keeps ties.
        every = [shards.gather(part[None])[0].movedim(0, 1).flatten(1) for part in (scores, classes)]
        best = every[0].sort(dim=1, descending=True, stable=True).indices[:, :k]
        shape = (*queries.shape[:-1], k)
        return Nearest(*(part.gather(1, best)[own_part].reshape(shape) for part in every))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, loss={self.loss.name!r}, "
            f"weight_decay={self.weight_decay:g}, bias={self.with_bias}"
        )

    def _losses(
        self, features: Tensor, target: Tensor, receive: Callable[..., None] | None, shortlist: Tensor | None = None
    ) -> Tensor:
        """The loss of each example, float64."""
        features, target = as_tensor("features", features), as_tensor("target", target)
        if features.ndim == 0 or features.shape[-1] != self.in_features or target.shape != features.shape[:-1]:
            raise ValueError(
                f"features must have shape (..., {self.in_features}) and target the same without the last axis, "
                f"got {tuple(features.shape)} and {tuple(target.shape)}."
            )
        self._rows_checked(features)
        labels = self._checked(target)[..., None]
        if shortlist is not None:
            if not self.loss.quadratic:
                raise ValueError(
                    f"a shortlist needs the sum of squares of the logits, which the loss {self.loss.name!r} does not "
                    'keep. Use a head with loss="taylor_softmax".'
                )
            if as_tensor("shortlist", shortlist).shape[:-1] != target.shape or shortlist.ndim != target.ndim + 1:
                raise ValueError(
                    f"shortlist must have shape {(*target.shape, 'k')}, some classes for each example, "
                    f"got {tuple(shortlist.shape)}."
                )
            labels = torch.cat([labels, self._checked(shortlist, "shortlist")], -1)
        with full_precision(features.device):
            wide = self._extended(features.double())
            # The rows are no inputs of autograd; a scalar that wants a gradient keeps the graph for frozen features.
            learning = receive is not None and torch.is_grad_enabled()
            switch = torch.zeros((), device=features.device, requires_grad=learning)
            stored = self.store.stored(labels.reshape(-1)).unflatten(0, labels.shape)
            logits, total, squares = _LogitNumbers.apply(  # type: ignore[no-untyped-call]
                wide, stored, self.store, labels, receive, switch
            )
            if shortlist is None:
                losses = self.loss.rule(logits[..., 0], total, squares, self.num_classes)
            else:
                counted = _new_ones(labels)
                losses = shortlist_softmax_rule(
                    logits[..., 0], logits[..., 1:], counted, total, squares, self.num_classes
                )
        if as_tensor("what the loss function returns", losses).shape != total.shape:
            raise ValueError(
                f"the loss function must return one loss per example, shape {tuple(total.shape)}, "
                f"got {tuple(losses.shape)}."
            )
        return losses

    def _receive(self, labels: Tensor, features: Tensor, *by: Tensor) -> None:
        by_own, by_total, by_squares = (part.detach().reshape(-1).double() for part in by)
        flat = features.reshape(-1, features.shape[-1])
        example = torch.arange(len(flat), device=labels.device).repeat_interleave(labels.shape[-1])
        self._pending.append(Pull(labels.reshape(-1), example, by_own, flat, by_total, by_squares))

    def _gathered_pull(self) -> Pull:
        """All backward passes since the last step, of all processes, whose objectives count by their mean."""
        nothing = self.store.total.new_zeros(0)
        whole, offset = [], 0
        for pull in self._pending:
            whole.append(pull._replace(example=pull.example + offset))
            offset += len(pull.features)
        empty = Pull(
            nothing.long(), nothing.long(), nothing, nothing.new_zeros(0, len(self.store.total)), *[nothing] * 2
        )
        pull = Pull(*(torch.cat(part) for part in zip(empty, *whole, strict=True)))
        shards = self.store.shards
        features, own_part = shards.gather(pull.features)
        return Pull(
            shards.gather(pull.labels)[0],
            shards.gather(pull.example + own_part.start)[0],
            shards.gather(pull.by_own / shards.size)[0],
            features,
            shards.gather(pull.by_total / shards.size)[0],
            shards.gather(pull.by_squares / shards.size)[0],
        )

    def _rows_checked(self, features: Tensor) -> Tensor:
        features = as_tensor("features", features)
        if features.ndim == 0 or features.shape[-1] != self.in_features:
            raise ValueError(f"features must have shape (..., {self.in_features}), got {tuple(features.shape)}.")
        if not features.is_floating_point():
            raise ValueError(f"features must have a floating dtype, got {features.dtype}.")
        return features

    def _extended(self, features: Tensor) -> Tensor:
        """A bias is the weight of a last feature that is always 1."""
        return F.pad(features, (0, 1), value=1.0) if self.with_bias else features

    def _looked_up(self, target: Tensor) -> Tensor:
        labels = self._checked(target)
        return self.store.gathered(labels.reshape(-1)).view(*labels.shape, -1).to(self.store.own.dtype)

    def _whole(self) -> Tensor:
        blocks = [block for _, block in self.store.blocks()] or [self.store.own]
        return self.store.shards.gather(torch.cat(blocks))[0]

    def _checked(self, target: Tensor, name: str = "target") -> Tensor:
        if as_tensor(name, target).is_floating_point() or target.is_complex() or target.dtype == torch.bool:
            raise ValueError(f"{name} must hold class indices in an integer dtype, got {target.dtype}.")
        labels = target.to(torch.int64)
        if labels.numel():
            low, high = (int(end) for end in labels.aminmax())
            if low < 0 or high >= self.num_classes:
                raise ValueError(f"labels must lie in 0 .. {self.num_classes - 1}, got values from {low} to {high}.")
        return labels


class _LogitNumbers(torch.autograd.Function):
    r"""The logits of some classes, the sum of all and the sum of their squares, and word to the head of what moves it.

    With :math:`w = U^\top v + \omega` the features are turned once, :math:`w^\top h = v^\top Uh + \omega^\top h`,
    however many classes are asked for. Their gradient is :math:`\sum_j a_j w_j + b\bar w + 2c\,Gh`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,  # (*, p) float64
        stored: Tensor,  # (*, m, p) rows of V
        store: FactoredRows,
        labels: Tensor,  # (*, m)
        receive: Callable[..., None] | None,
        switch: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Copies: a step between forward and backward may change the buffers.
        mix, common, total = store.mix.clone(), store.common.clone(), store.total.clone()
        shares = store.shares(labels)
        turned = features @ store.gram if store.quadratic else torch.zeros_like(features)
        projected = features @ mix.T if store.quadratic else features * mix
        logits = (stored.double() @ projected[..., None]).squeeze(-1) + shares * (features @ common)[..., None]
        ctx.save_for_backward(features, stored, mix, common, total, turned, labels, shares)
        ctx.receive = receive
        return logits, features @ total, (features * turned).sum(-1)

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        features, stored, mix, common, total, turned, labels, shares = ctx.saved_tensors
        by_own, by_total, by_squares = (part.detach() for part in by)
        back = None
        with torch.no_grad():
            if ctx.receive is not None:
                ctx.receive(labels, features, by_own, by_total, by_squares)
            if ctx.needs_input_grad[0]:
                pulled = (by_own[..., None, :] @ stored.double()).squeeze(-2)
                pulled = pulled @ mix if mix.ndim else pulled * mix
                back = pulled + (by_own * shares).sum(-1, keepdim=True) * common
                back = back + by_total[..., None] * total + 2 * by_squares[..., None] * turned
        if back is not None and torch.is_grad_enabled():  # create_graph=True
            back = _Last.apply(back, features, *by)  # type: ignore[no-untyped-call]
        return back, None, None, None, None, by_own.new_zeros(())


class _Last(torch.autograd.Function):
    """A gradient that is not differentiated again: nothing would tell the rows of it.

    It stands on every way back to the features. That of torch's `once_differentiable` does not, and
    ``torch.autograd.grad`` goes around it without a word.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(
            "the gradient of a ManyClassHead cannot be differentiated again, because its rows would not follow. Take "
            "head.linear() and a loss of its logits for that, or detach the gradient."
        )


def _new_ones(labels: Tensor) -> Tensor:
    """Of a true class and a shortlist, which of the shortlist are neither the true class nor a repetition."""
    same = labels[..., 1:, None] == labels[..., None, :]
    earlier = torch.ones(same.shape[-2:], dtype=torch.bool, device=labels.device).tril()  # the true class, and before
    return ~(same & earlier).any(-1)


def _drawn(
    in_features: int,
    bias: bool,
    shards: Shards,
    generator: torch.Generator | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Tensor:
    """The rows of this process as ``nn.Linear`` draws them. All processes draw alike, whatever their number."""
    bound = 1 / math.sqrt(in_features)
    drawn_on = device if generator is None else generator.device
    width = in_features + bias
    kept = torch.empty(shards.stop - shards.start, width, dtype=dtype, device=drawn_on)
    # In blocks, so that a process that owns a tenth of the rows does not need memory for all of them.
    for first in range(0, shards.num_classes, ROWS_DRAWN):
        count = min(ROWS_DRAWN, shards.num_classes - first)
        block = torch.empty(count, width, dtype=dtype, device=drawn_on).uniform_(-bound, bound, generator=generator)
        low, high = max(first, shards.start), min(first + count, shards.stop)
        if low < high:
            kept[low - shards.start : high - shards.start] = block[low - first : high - first]
    return kept.to(device=device)
