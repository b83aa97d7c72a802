"""The loss itself: its matrix form, its gradient, its relation to margins (errata 1, 5, 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from unhinge.paper.claims.oracles import gradients, mean_loss, relative
from unhinge.paper.claims.problems import Problem, draw, gaussian, whole
from unhinge.paper.claims.registry import Formula, Undefined, claim

ROUNDING = "float64 rounding of a few hundred operations"


def class_grouped(num_classes: int, per_class: int) -> Tensor:
    r"""Labels as :math:`I_C \otimes 1_N^\top`: all examples of class 1, then of class 2."""
    return torch.kron(torch.eye(num_classes), torch.ones(1, per_class)).double()


def example_major(num_classes: int, per_class: int) -> Tensor:
    r"""Labels as :math:`1_N^\top \otimes I_C`: the first example of each class, then the second."""
    return torch.kron(torch.ones(1, per_class), torch.eye(num_classes)).double()


@claim(
    "loss-column-order",
    title="The trace form of the loss, with the features stacked example by example",
    where="objective",
    says="features stacked example-major, labels written as I ⊗ 1ᵀ, which is class-grouped",
    right="one order for both: 1ᵀ ⊗ I for features stacked example-major",
    printed=class_grouped,
    ours=example_major,
    oracle="the loss summed example by example",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(1,),
    severity="A",
)
def column_order(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator)
    c, n, gamma = problem.num_classes, problem.per_class, problem.gamma
    labels = torch.arange(c).repeat(n)  # example-major: classes 1..C of example 1, then of example 2
    onehot = formula(c, n)
    y = (gamma - (1 + gamma) * onehot) / (c * n)
    trace = (y.T @ problem.weight @ problem.features.T).trace()
    return abs((trace - mean_loss(problem.features @ problem.weight.T, labels, gamma)).item())


def printed_logits(weight: Tensor, feature: Tensor, bias: Tensor) -> Tensor:
    """W h + b with the prototypes as the columns of W, p × C."""
    columns = weight.T
    if columns.shape[1] != len(feature):
        raise Undefined(f"a {columns.shape[0]}×{columns.shape[1]} matrix times a vector of length {len(feature)}")
    return columns @ feature + bias


def right_logits(weight: Tensor, feature: Tensor, bias: Tensor) -> Tensor:
    return weight @ feature + bias


@claim(
    "loss-logits",
    title="The logits in the argument of the loss, prototypes being the p × C columns of W",
    where="the-unhinged-loss",
    says="W h + b",
    right="Wᵀh + b; W h has no value unless p = C, and is wrong then",
    printed=printed_logits,
    ours=right_logits,
    oracle="one inner product per class",
    tolerance=1e-13,
    because="float64 rounding of sums of at most 6 terms",
    errata=(6,),
    severity="C",
    problems=8,
)
def logits_of(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator)
    feature = problem.features[0]
    each = [sum(x * y for x, y in zip(w.tolist(), feature.tolist(), strict=True)) for w in problem.weight]
    wanted = torch.tensor(each, dtype=torch.float64) + problem.bias
    logits = formula(problem.weight, feature, problem.bias)
    return relative(logits, wanted)


def flow_field(problem: Problem, features: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The right-hand side of the printed gradient flow at unit rates, decay included."""
    c, n, gamma = problem.num_classes, problem.per_class, problem.gamma
    m = ((1 + gamma) * class_grouped(c, n) - gamma) / (c * n)
    return (
        m.T @ weight - problem.feature_decay * features,
        m @ features - problem.weight_decay * weight,
        -(gamma * c - gamma - 1) / c - problem.weight_decay * bias,
    )


@claim(
    "loss-gradient-flow",
    title="The right-hand sides of the flow of features, prototypes and biases, with and without decay",
    where="regularized-gradient-flow",
    says="H' = W M − λ₁H, W' = H Mᵀ − λ₂W, b' = (1 + γ − γC)/C − λ₂b at unit rates",
    ours=flow_field,
    oracle="minus autograd's gradient of the loss",
    tolerance=1e-12,
    because=ROUNDING,
)
def gradient_flow(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator).with_decay(0.3 * whole(generator, 0, 2), 0.2 * whole(generator, 0, 2))
    start = problem.features, problem.weight, problem.bias
    right = gradients(problem, *start)
    return max(relative(mine, -theirs) for mine, theirs in zip(formula(problem, *start), right, strict=True))


def uphill(gradient: Tensor) -> Tensor:
    return gradient


def downhill(gradient: Tensor) -> Tensor:
    return -gradient


@claim(
    "loss-flow-sign",
    title="The continuous limit of gradient descent, as the footnote defines it",
    where="gradient-flow",
    says="x' = +η ∇f",
    right="x' = −η ∇f",
    printed=uphill,
    ours=downhill,
    oracle="200 small steps of torch.optim.SGD",
    tolerance=3e-5,
    because="gradient descent with step 5e-4 over time 0.1 leaves this flow by half their product, 2.5e-5",
    errata=(6,),
    severity="C",
    problems=2,
)
def flow_sign(generator: torch.Generator, formula: Formula) -> float:
    target, start = gaussian(generator, 3), gaussian(generator, 3)  # f = |x - target|^2 / 2
    x = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([x], lr=5e-4)
    for _ in range(200):
        optimizer.zero_grad()
        ((x - target).square().sum() / 2).backward()
        optimizer.step()
    flow, steps, time = start.clone(), 100, 0.1
    for _ in range(steps):  # midpoint rule on the stated right-hand side
        middle = flow + time / steps / 2 * formula(flow - target)
        flow = flow + time / steps * formula(middle - target)
    return ((x.detach() - flow).norm() / (start - target).norm()).item()


def average_margin(logits: Tensor, label: int) -> Tensor:
    others = torch.cat([logits[:label], logits[label + 1 :]])
    return (logits[label] - others).mean()


def minus_average_margin(logits: Tensor, label: int) -> Tensor:
    return -average_margin(logits, label)


@claim(
    "loss-as-margin",
    title="At γ = 1/(C−1) the loss in terms of the average margin; likewise where it is compared with Wasserstein",
    where="the-unhinged-loss",
    says="the loss is the average margin",
    right="the loss is minus the average margin",
    printed=average_margin,
    ours=minus_average_margin,
    oracle="the loss summed logit by logit",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(5,),
    severity="C",
)
def loss_as_margin(generator: torch.Generator, formula: Formula) -> float:
    c = whole(generator, 2, 8)
    logits, label = gaussian(generator, c), whole(generator, 0, c - 1)
    loss = mean_loss(logits[None], torch.tensor([label]), 1 / (c - 1))
    return abs((formula(logits, label) - loss).item())


@claim(
    "loss-margin-bound",
    title="The sample margin is at most minus the loss at γ = 1/(C−1), and equals it when the other logits tie",
    where="the-unhinged-loss",
    says="margin ≤ average of the margins to the other classes",
    ours=average_margin,
    oracle="random logits, one in two with all other logits equal",
    tolerance=1e-12,
    because=ROUNDING,
    problems=200,
)
def margin_bound(generator: torch.Generator, formula: Formula) -> float:
    c = whole(generator, 2, 8)
    logits, label = gaussian(generator, c), whole(generator, 0, c - 1)
    tie = whole(generator, 0, 1) == 1
    if tie:
        logits = torch.where(torch.arange(c) == label, logits, logits.min())
    others = torch.cat([logits[:label], logits[label + 1 :]])
    excess = (logits[label] - others.max() - formula(logits, label)).item()
    return abs(excess) if tie else max(excess, 0.0)
