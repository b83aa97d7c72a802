"""A hook on the head of a network that measures its training, and leaves it as it was to the last bit."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unhinge.metrics import CollapseSummary
from unhinge.metrics.checks import Labels
from unhinge.metrics.collapse import WIDEST_COVARIANCE
from unhinge.monitor.forecast import Forecast, Setting, forecast
from unhinge.nn.probe import find_head, head_parameters
from unhinge.prediction import Measured
from unhinge.theory.numerics import float64_device
from unhinge.theory.processes import sum_over_processes
from unhinge.theory.validation import check_number, check_unmasked

__all__ = ["Monitor"]

# Forward passes waiting for their labels. Older ones are forgotten, so that a loop without update() fills no memory.
PASSES = 32


class Monitor:
    r"""Measures the features that enter a network's head, one pass at a time, and predicts where they go.

    A forward pre-hook on the head hears the features; the labels come from :meth:`update` or from `loss`. Of each batch
    only sums are kept, in float64. Nothing is added to the graph and no random number is drawn: weights are the same
    bits with and without it. The prediction is the theory's: for the unhinged loss, and features that move freely.

    Arguments:
        model: Any classifier; also inside ``DistributedDataParallel`` or ``torch.compile``.
        head: Its last linear layer, or the name of that, where it is not found: an ``nn.Linear``, or a module with
            `in_features` and a 2-D `weight` such as ``ETFHead``.
        loss: A loss module that is called with the labels, such as ``nn.CrossEntropyLoss()``; :meth:`update` need not
            be called then. Of several calls per forward pass the first counts.
        when: ``"train"`` counts forward passes in training mode, ``"eval"`` those in evaluation mode, ``"always"`` all.
        lr: The learning rate the theory counts steps by, or a function that returns the current one.
        gamma: :math:`\gamma` of the theory's loss; `None` means :math:`1/(C-1)`.
        feature_decay, weight_decay: :math:`\lambda_1, \lambda_2` of the theory.
        distance: How near to its limit counts as collapsed.
        theory: Whether to predict at all.
        first_phase: Whether to predict cross-entropy's first phase as well: ``theory/young_horizon`` is the number of
            steps for which free features and a free head would stay within a tenth of the linear path (0 once logits
            are large), and the loss up to there stands among the predictions as ``cross_entropy``.
        nc4: Whether to measure NC4, at the cost of the head's forward pass once more.
        ignore_index: The label of examples to leave out, as in ``nn.CrossEntropyLoss``.
        group: The processes whose batches belong together; by default all, where there are several.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> monitor = Monitor(model)
        >>> logits = model(torch.randn(12, 8))
        >>> monitor.update(torch.arange(12) % 3)
        >>> numbers = monitor.compute()
        >>> numbers["theory/imbalance"]
        1.0
        >>> 0 < numbers["nc1"]
        True
        >>> numbers["theory/limit_rank"]
        2.0
        >>> monitor.detach()
    """

    def __init__(
        self,
        model: nn.Module,
        head: nn.Module | str | None = None,
        *,
        loss: nn.Module | None = None,
        when: Literal["train", "eval", "always"] = "train",
        lr: float | Callable[[], float] = 0.1,
        gamma: float | None = None,
        feature_decay: float = 0.0,
        weight_decay: float = 0.0,
        distance: float = 0.1,
        theory: bool = True,
        first_phase: bool = False,
        nc4: bool = True,
        ignore_index: int = -100,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if when not in ("train", "eval", "always"):
            raise ValueError(f'when must be "train", "eval" or "always", got {when!r}.')
        settings = {"distance": distance, "gamma": gamma, "feature_decay": feature_decay, "weight_decay": weight_decay}
        for name, value in settings.items():
            if name != "gamma" or value is not None:
                check_number(name, value)
        if not callable(lr):
            check_number("lr", lr)
        if not 0 < distance < 2:
            raise ValueError(f"distance must lie between 0 and 2, got {distance:g}.")
        if loss is not None and not isinstance(loss, nn.Module):
            raise ValueError(
                f"loss must be a module such as nn.CrossEntropyLoss(), got {type(loss).__name__}. Leave it out where "
                "the loss is a function, and call update(labels) after each forward pass."
            )
        self.head = find_head(model, head)
        self.when = when
        self.lr = lr
        self.setting = Setting(gamma, feature_decay, weight_decay, distance, first_phase)
        self.theory, self.nc4 = theory, nc4
        self.ignore_index = ignore_index
        self.group = group
        self.num_classes, self.dim = head_parameters(self.head)[0].shape
        self._passed_over = False  # the last forward pass was not to be counted
        self._before: CollapseSummary | None = None  # the epoch before, whose class means nc4 goes by
        self._forecast: tuple[Forecast, int] | None = None  # and what was predicted then, at which step
        self._clear()
        self._hooks = [self.head.register_forward_pre_hook(_WeakHook(self, "_on_forward"), with_kwargs=True)]
        if loss is not None:
            self._hooks.append(loss.register_forward_pre_hook(_WeakHook(self, "_on_loss"), with_kwargs=True))

    @property
    def waiting(self) -> bool:
        """Whether features of a forward pass wait for their labels."""
        return bool(self._heard)

    def detach(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def update(self, labels: Labels) -> None:
        """The labels of the last forward pass, or of the last few together (gradient accumulation), in their order.

        A forward pass in a mode that does not count (see `when`) is passed over, with its labels.
        """
        if not self._take(labels) and not self._passed_over:
            raise ValueError(
                "there are labels, but no features: no forward pass has reached the head since the last update(). "
                "Call update(labels) once, after the forward pass; if the head is not called in it, pass head=. "
                "A compiled model must be called for the first time after the monitor was made."
            )
        self._passed_over = False

    def compute(self, step: int | None = None) -> dict[str, float]:
        """The numbers of all batches since the last call, ready for a logger; then a new epoch starts.

        What cannot be measured is left out, with a warning that says why, and so is what is infinite. With several
        processes, all must call it, and all get the numbers of the whole.

        Arguments:
            step: How many optimizer steps were made so far. With it, what the last call predicted for this step is
                given too, as ``predicted/...``.

        Returns:
            - ``nc1``, ``nc1_ratio``, ``nc2_*``, ``nc3``, ``alignment``, ``feature_alignment``, ``feature_norm_mean``,
              ``weight_*``: see :func:`unhinge.metrics.neural_collapse`. The features are those the batches had, the
              head is that of now.
            - ``nc4``: by the class means of the epoch before, so from the second on. For the exact one, which takes two
              passes: ``unhinge.prediction.predict(model, loader)``.
            - ``feature_norm_rms``, ``weight_norm_rms``: root mean squares of the norms; they come with the prediction.
            - ``theory/...``, where every class was seen: ``growth`` and ``rate``, the exponents of the norm and of the
              distance from the limit, per step; ``time_to_collapse``, in steps; ``critical_decay``; ``best_gamma``;
              ``limit_accuracy``, ``limit_rank``, ``limit_nc*`` of the limit; ``imbalance``, and where it is not 1
              ``limit_accuracy_sqrt``, ``limit_accuracy_inverse`` with class weights. Of a fixed head only the first
              three and the imbalance, of one that normalizes nothing.
            - ``predicted/...``: neural collapse and norms. How far they are from what is found tells how far training
              is from free features under the unhinged loss.
            - ``examples``, and ``nonfinite``: examples left out because their features were NaN or infinite.
        """
        with torch.no_grad():
            whole, nonfinite, apart, compared = self._reduced()
            weight, bias = head_parameters(self.head)
            weight = weight.to("cpu", torch.float64)
            bias = None if bias is None else bias.to(weight)
            record = {"examples": float(whole.classes.size), "nonfinite": float(nonfinite)}
            reason = _unmeasurable(whole, weight, bias)
            if reason is None:
                record |= {key: value.item() for key, value in whole.measures(weight).items()}
                if compared:
                    record["nc4"] = apart / compared
                self._before = whole
            now, reason = (None, reason) if reason else self._predicted(whole, weight, bias)
            if now is not None:
                record |= now.norms(0) | {f"theory/{key}": value for key, value in now.numbers.items()}
            if step is not None and self._forecast is not None and step > self._forecast[1]:
                then, at = self._forecast
                record |= {f"predicted/{key}": value for key, value in then.at(step - at).items()}
            self._forecast = None if now is None or step is None else (now, step)
        self._clear()
        if reason is not None:
            warnings.warn(reason, stacklevel=2)
        return {key: value for key, value in record.items() if math.isfinite(value)}

    def _predicted(
        self, whole: CollapseSummary, weight: Tensor, bias: Tensor | None
    ) -> tuple[Forecast | None, str | None]:
        """The forecast, or why there is none."""
        # On normalized features the norms take no part: the dynamics of free features is not this model's.
        if not self.theory or getattr(self.head, "normalize", False):
            return None, None
        missing = (whole.counts == 0).nonzero()[:, 0].tolist()
        if missing:
            some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            return None, f"there is no prediction without an example of every class, and of {some} there was none."
        measured = Measured(whole.classes, weight, bias, {}, None)
        fixed = not any(parameter.requires_grad for name, parameter in self.head.named_parameters() if name != "bias")
        try:
            lr = self.lr() if callable(self.lr) else self.lr
            check_number("lr", lr)
            return forecast(measured, self.setting, float(lr), fixed), None
        except ValueError as error:
            return None, f"there is no prediction: {error}"

    def _clear(self) -> None:
        self._heard: deque[Tensor] = deque(maxlen=PASSES)  # (b, p) each, of forward passes without labels as yet
        self._passed_over = False
        self.summary: CollapseSummary | None = None
        self._nonfinite = 0
        self._apart = torch.zeros((), dtype=torch.int64)
        self._compared = 0

    def _on_forward(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        features = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(features, Tensor):  # a symbol of torch.fx
            return
        self._passed_over = self.when != "always" and module.training != (self.when == "train")
        if self._passed_over:
            self._heard.clear()
        else:
            self._heard.append(features.detach().reshape(-1, features.shape[-1]))

    def _on_loss(self, _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not self._heard:
            return
        given = [*(kwargs[key] for key in ("target", "labels") if key in kwargs), *args]
        integers = [value for value in given if isinstance(value, Tensor) and not value.is_floating_point()]
        if not integers:
            raise ValueError(
                "the loss was called without integer labels. Leave out loss=, and call update(labels) after each "
                "forward pass; of soft labels, take the class: update(target.argmax(1))."
            )
        self._take(integers[0])  # of losses that take more, such as lengths, after the target

    def _take(self, labels: Labels) -> bool:
        """Count the last forward passes that have as many rows as there are labels; False if there are none at all."""
        if not self._heard:
            return False
        check_unmasked("labels", labels)
        flat = torch.as_tensor(labels).detach().reshape(-1)
        passes, rows = 1, len(self._heard[-1])
        while rows < len(flat) and passes < len(self._heard):
            passes += 1
            rows += len(self._heard[-passes])
        if rows != len(flat):
            shapes = ", ".join(str(tuple(features.shape)) for features in list(self._heard)[-4:])
            self._heard.clear()
            raise ValueError(
                f"there are {len(flat)} labels, but since the last update() features of shape {shapes} have entered "
                "the head. Call update(labels) after each forward pass, with one label per row; soft labels as "
                "target.argmax(1)."
            )
        features = torch.cat(list(self._heard)[-passes:]) if passes > 1 else self._heard[-1]
        self._heard.clear()
        with torch.no_grad():
            self._count(features, flat.to(features.device))
        return True

    def _count(self, features: Tensor, labels: Tensor) -> None:
        wanted, finite = labels != self.ignore_index, features.isfinite().all(1)
        keep = wanted & finite
        if not bool(keep.all()):
            self._nonfinite += int((wanted & ~finite).sum())
            features, labels = features[keep], labels[keep]
        if not len(labels):
            return
        part = CollapseSummary.of(features, labels, self.num_classes, self.dim <= WIDEST_COVARIANCE)
        self.summary = part if self.summary is None else self.summary + part
        if self.nc4 and self._before is not None:
            weight, bias = head_parameters(self.head)
            if _finite(weight, bias):
                self._apart = self._apart.to(features.device) + self._before.disagrees(features, weight, bias).sum()
                self._compared += len(labels)

    def _reduced(self) -> tuple[CollapseSummary, int, int, int]:
        """The sums of all processes, as float64 on the CPU."""
        whole = self.summary
        if whole is None:
            weight = head_parameters(self.head)[0]
            covariance = self.dim <= WIDEST_COVARIANCE
            whole = CollapseSummary.empty(self.num_classes, self.dim, covariance, weight.dtype, float64_device(weight))
        counts = torch.tensor([self._nonfinite, int(self._apart), self._compared])
        if dist.is_available() and dist.is_initialized() and dist.get_world_size(self.group) > 1:
            whole, counts = whole.all_reduce(self.group), sum_over_processes(counts, self.group)
        classes = replace(whole.classes, sums=whole.classes.sums.cpu(), dtype=torch.float64)
        within = None if whole.within is None else whole.within.cpu()
        nonfinite, apart, compared = counts.tolist()
        return CollapseSummary(classes, within, whole.directions.cpu(), whole.norms.cpu()), nonfinite, apart, compared


class _WeakHook:
    """A hook that knows its owner weakly. In a copy of the model, or one read from a file, it hears nothing."""

    def __init__(self, owner: Monitor | None = None, method: str = "") -> None:
        self.owner = None if owner is None else weakref.ref(owner)
        self.method = method

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        owner = None if self.owner is None else self.owner()
        if owner is not None:
            getattr(owner, self.method)(module, args, kwargs)

    def __reduce__(self) -> tuple[type[_WeakHook], tuple[()]]:
        return _WeakHook, ()


def _unmeasurable(whole: CollapseSummary, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why there is no neural collapse to measure, if so."""
    if not whole.classes.size:
        return (
            "nothing was counted: no labels came for features that are finite. Call update(labels) after each forward "
            'pass, or pass loss=; evaluation mode counts only with when="eval".'
        )
    if int((whole.counts > 0).sum()) < 2:
        return "all examples were of one class; neural collapse needs two."
    return None if _finite(weight, bias) else "the weights of the head are not finite."


def _finite(weight: Tensor, bias: Tensor | None) -> bool:
    return bool(weight.isfinite().all()) and (bias is None or bool(bias.isfinite().all()))
