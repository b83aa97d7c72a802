r"""The neural tangent kernel of a network as it is: :math:`K = \mathcal J\mathcal J^\top`  [eq: ntk].

:math:`\mathcal J` is the Jacobian of the features by the trainable parameters. What
:meth:`~unhinge.theory.LayerPeeled.kernel_flow` needs of K are p C products, and a product is one backward and one
forward derivative of the network; so a network of any width is solved without ever forming K or :math:`\mathcal J`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

__all__ = ["NTKOperator", "empirical_ntk"]

SMALL = 1 << 24  # entries of a kernel that is formed without being asked to: 128 MB in float64
ROOM = 1 << 26  # entries of a Jacobian that is formed in one piece


@dataclass(frozen=True)
class NTKOperator:
    r"""Products with the kernel, by one backward and one forward derivative each; a snapshot of the network.

    Full: rows :math:`(n, p)` to rows :math:`(n', p)`. Example: rows :math:`(n, q)` to rows :math:`(n', q)` by the
    average over the entries of a feature, at the cost of p products for each column.

    Example:
        >>> network = nn.Linear(2, 3, bias=False, dtype=torch.float64)
        >>> operator = empirical_ntk(
        ...     network, torch.eye(2, dtype=torch.float64), form="operator"
        ... )
        >>> operator.shape, operator(torch.ones(2, 3, dtype=torch.float64)).shape
        ((6, 6), torch.Size([2, 3]))
    """

    module: nn.Module  # a copy in evaluation mode, never changed
    inputs: Tensor  # (n, ...)
    new_inputs: Tensor  # (n', ...), the inputs again unless this is a cross kernel
    kind: str  # "full" or "example"
    dim: int  # p
    batch_size: int  # inputs held by one derivative

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix it stands for: (n' p, n p) if full, (n', n) if by example."""
        return len(self.new_inputs) * self._each, len(self.inputs) * self._each

    def __call__(self, rows: Tensor) -> Tensor:
        """The product with rows in the layout of the features, worked out in the network's dtype."""
        known = rows.reshape(len(self.inputs), -1).to(self._like)
        if self.kind == "full":
            return self._product(known).to(rows)
        return torch.stack([self._average(column) for column in known.mT], 1).to(rows)

    def matrix(self) -> Tensor:
        """All entries, shape :attr:`shape`."""
        size = sum(parameter.numel() for parameter in self._trained.values())
        if (len(self.inputs) + len(self.new_inputs)) * self.dim * size <= ROOM:
            return self._contracted()
        return torch.stack([self(column).reshape(-1) for column in torch.eye(self.shape[1]).to(self._like)], 1)

    @cached_property
    def _trained(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.module.named_parameters() if value.requires_grad}

    @property
    def _like(self) -> Tensor:
        return next(iter(self._trained.values()))

    @property
    def _each(self) -> int:
        return self.dim if self.kind == "full" else 1

    def features(self, inputs: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        """The network at other parameters."""
        out: Tensor = functional_call(self.module, parameters, (inputs,))
        return out

    def _product(self, rows: Tensor) -> Tensor:
        trained = self._trained
        step = {name: torch.zeros_like(value) for name, value in trained.items()}
        for inputs, part in zip(self.inputs.split(self.batch_size), rows.split(self.batch_size), strict=True):
            (gradient,) = vjp(partial(self.features, inputs), trained)[1](part)
            step = {name: value + gradient[name] for name, value in step.items()}
        pieces = self.new_inputs.split(self.batch_size)
        return torch.cat([jvp(partial(self.features, inputs), (trained,), (step,))[1] for inputs in pieces]).detach()

    def _average(self, column: Tensor) -> Tensor:
        units = torch.eye(self.dim).to(column)
        traces = [self._product(column[:, None] * unit)[:, entry] for entry, unit in enumerate(units)]
        return torch.stack(traces).mean(0)

    def _contracted(self) -> Tensor:
        """Both Jacobians in memory, joined one parameter at a time."""

        def jacobian(inputs: Tensor) -> dict[str, Tensor]:
            of_one = jacrev(lambda parameters, single: self.features(single[None], parameters)[0])
            of_each: dict[str, Tensor] = vmap(of_one, in_dims=(None, 0))(self._trained, inputs)
            return of_each

        right = jacobian(self.inputs)
        left = right if self.new_inputs is self.inputs else jacobian(self.new_inputs)
        total = self._like.new_zeros(self.shape)
        for name, here in left.items():
            a, b = here.flatten(2), right[name].flatten(2)
            if self.kind == "full":
                total += a.flatten(0, 1) @ b.flatten(0, 1).mT
            else:
                total += torch.einsum("iak,jak->ij", a, b) / self.dim
        return total


def empirical_ntk(
    module: nn.Module,
    inputs: Tensor,
    new_inputs: Tensor | None = None,
    kind: str = "full",
    form: str = "auto",
    batch_size: int = 256,
) -> Tensor | NTKOperator:
    r"""The kernel of a network at its present parameters, ready for :meth:`~unhinge.theory.LayerPeeled.kernel_flow`.

    Arguments:
        module: Any network that turns inputs :math:`(n, ...)` into features :math:`(n, p)`, without its classifier.
            Only parameters with ``requires_grad`` count. It is copied and evaluated in evaluation mode: batch norm uses
            its running statistics, which makes each feature a function of its own input, and dropout does nothing.
            Train it in evaluation mode too where the prediction is to be compared.
        inputs: The training inputs.
        new_inputs: Unseen inputs :math:`(n', ...)`: asks for the cross kernel of
            :meth:`~unhinge.theory.kernel.path.KernelPath.predict`, new by training inputs.
        kind: ``"full"``: :math:`K_{(i,a),(j,b)} = \langle\partial h_{ia}, \partial h_{jb}\rangle`, indexed by
            ``features.reshape(-1)``. ``"example"``: the average :math:`K_x = \frac1p\sum_a K_{(i,a),(j,a)}`; wide
            networks with independent outputs tend to :math:`K = K_x \otimes I_p`.
        form: ``"matrix"``, ``"operator"``, or ``"auto"``: a matrix if it is small.
        batch_size: Inputs per derivative of the operator: bounds its memory, not its result.

    Returns:
        A tensor :math:`(n'p, np)` or :math:`(n', n)`, or an :class:`NTKOperator` that multiplies like one.

    Example:
        >>> network = nn.Linear(2, 3, bias=False, dtype=torch.float64)
        >>> inputs = torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
        >>> # a linear layer: the inner products of its inputs
        >>> empirical_ntk(network, inputs, kind="example")
        tensor([[1., 1.],
                [1., 5.]], dtype=torch.float64)
        >>> empirical_ntk(network, inputs, form="operator")(
        ...     torch.ones(2, 3, dtype=torch.float64)
        ... )[:, 0]
        tensor([2., 6.], dtype=torch.float64)
    """
    _check_choice("kind", kind, ("full", "example"))
    _check_choice("form", form, ("auto", "matrix", "operator"))
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be an nn.Module that returns features, got {type(module).__name__}.")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            "no parameter of the module requires a gradient, so its kernel is zero. Unfreeze some of them."
        )
    frozen = copy.deepcopy(module).eval()
    dim = _feature_dim(frozen, inputs)
    if new_inputs is not None and new_inputs.shape[1:] != inputs.shape[1:]:
        raise ValueError(
            f"new_inputs must be shaped like inputs, {tuple(inputs.shape[1:])} each, got {tuple(new_inputs.shape[1:])}."
        )
    old_inputs = inputs.detach().clone()
    row_inputs = old_inputs if new_inputs is None else new_inputs.detach().clone()
    operator = NTKOperator(frozen, old_inputs, row_inputs, kind, dim, batch_size)
    _check_functional(operator)
    rows, columns = operator.shape
    if form == "matrix" or (form == "auto" and rows * columns <= SMALL):
        return operator.matrix()
    return operator


def _feature_dim(module: nn.Module, inputs: Tensor) -> int:
    with torch.no_grad():
        out: object = module(inputs[:1])
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != 1:
        came = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"the module must turn inputs (n, ...) into features (n, p), but for one input it returned {came}. "
            "Wrap it so that it returns the features before the classifier, flattened to one vector each."
        )
    return out.shape[1]


def _check_functional(operator: NTKOperator) -> None:
    """Some modules lose the link to a parameter that is handed in from outside, as torch.func does: their kernel would
    silently lack that parameter. One ordinary backward pass tells."""
    module, inputs, trained = operator.module, operator.inputs[:1], operator._trained
    own = {name: value for name, value in module.named_parameters() if value.requires_grad}
    with torch.enable_grad():
        features = module(inputs)
        ones = torch.ones_like(features)
        plain: tuple[Tensor | None, ...] = torch.autograd.grad(features, list(own.values()), ones, allow_unused=True)
    (through,) = vjp(partial(operator.features, inputs), trained)[1](ones)
    for name, gradient in zip(own, plain, strict=True):
        expected = torch.zeros_like(trained[name]) if gradient is None else gradient
        size = expected.abs().max()
        if (through[name] - expected).abs().max() > torch.finfo(size.dtype).eps ** 0.5 * size:
            raise ValueError(
                f"the gradient of parameter {name!r} is not the same when the parameter is passed through "
                "torch.func.functional_call, so the kernel would be wrong. The forward pass must read its parameters "
                "as attributes at every call; slicing an nn.ParameterList, for one, makes copies: iterate over it."
            )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
