"""The roots of the secular equation, and their distances to every pole, to full relative accuracy."""

from __future__ import annotations

import mpmath as mp
import pytest
import torch

from unhinge.theory.linear.secular import solve_secular

EPS = torch.finfo(torch.float64).eps


def poles(kind: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    drawn = torch.rand(size, generator=generator, dtype=torch.float64)
    beta = {
        "uniform": drawn + 0.5,
        "long tail": torch.exp(-20 * drawn),
        "clusters": torch.round(drawn * 4) + 1 + 1e-9 * drawn,
        "nearly tied": 1 + 4e-15 * torch.arange(1, size + 1, dtype=torch.float64),
        "over all decades": 10.0 ** (-200 * drawn),
    }[kind]
    beta = beta.sort(descending=True).values
    return beta / beta[0], torch.randint(1, 4, (size,), generator=generator).double()


def exact_offset(beta: list[float], multiplicity: list[float], nu: float, roots, k: int) -> mp.mpf:
    """The distance of a root from its anchor, by Newton's method around ours, in 60 digits."""
    with mp.workdps(60):
        rho = (mp.mpf(nu) ** 2 - 1) / mp.fsum(multiplicity)
        anchor, x = mp.mpf(roots.anchor[k].item()), mp.mpf(roots.offset[k].item())
        masses = [mp.mpf(m) * mp.mpf(b) for m, b in zip(multiplicity, beta, strict=True)]
        for _ in range(4):
            away = [mp.mpf(b) - anchor - x for b in beta]
            value = 1 + rho * mp.fsum(m / d for m, d in zip(masses, away, strict=True))
            slope = rho * mp.fsum(m / d**2 for m, d in zip(masses, away, strict=True))
            change = value / slope
            x -= change
        assert abs(change) <= abs(x) * mp.mpf(10) ** -40, "Newton's method did not settle"
        return x


@pytest.mark.parametrize("nu", [0.0, -0.7, 0.4, 1.5, 20.0, 1e-8])
@pytest.mark.parametrize("kind", ["uniform", "long tail", "clusters", "nearly tied", "over all decades"])
def test_each_root_is_exact_as_an_offset_from_its_anchor(kind, nu):
    beta, multiplicity = poles(kind, 24)
    value = torch.tensor(nu, dtype=torch.float64)
    roots = solve_secular(beta, multiplicity, (value**2 - 1) / multiplicity.sum(), value)
    assert (roots.tau.diff() <= 0).all()
    for k in range(len(beta)):
        if roots.offset[k] == 0:
            assert nu == 0
            continue
        exact = exact_offset(beta.tolist(), multiplicity.tolist(), nu, roots, k)
        # what rounding each term of the equation once does to the root; 1 where no terms cancel
        terms = (value**2 - 1) / multiplicity.sum() * multiplicity * beta / roots.distance(k, slice(None))
        slope = (terms / roots.distance(k, slice(None)) * roots.offset[k]).sum().abs()
        condition = ((1 + terms.abs().sum()) / slope).item()
        assert abs(float(roots.offset[k].item() / exact - 1)) <= 32 * EPS * max(1.0, condition)


@pytest.mark.parametrize("kind", ["uniform", "long tail", "clusters"])
def test_many_roots_in_blocks_solve_the_equation(kind):
    """More poles than one block holds; each root satisfies its equation as well as rounding allows."""
    beta, multiplicity = poles(kind, 700)
    nu = torch.tensor(0.3, dtype=torch.float64)
    rho = (nu**2 - 1) / multiplicity.sum()
    roots = solve_secular(beta, multiplicity, rho, nu)
    for k in range(700):
        terms = rho * multiplicity * beta / roots.distance(k, slice(None))
        assert abs(1 + terms.sum()) <= 256 * EPS * (1 + terms.abs().sum())


@pytest.mark.parametrize("nu", [-0.7, 0.4, 1.5])
@pytest.mark.parametrize("size", [1, 2, 20])
def test_roots_are_twice_differentiable(nu, size):
    beta, multiplicity = poles("uniform", size)

    weights = torch.linspace(0.5, 1.5, size, dtype=torch.float64)

    def taus(value: torch.Tensor) -> torch.Tensor:
        roots = solve_secular(beta, multiplicity, (value**2 - 1) / multiplicity.sum(), value)
        return torch.stack([(roots.tau * weights).sum(), (roots.pull(slice(0, size)) * weights).sum()])

    value = torch.tensor(nu, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(taus, value, rtol=1e-5)
    assert torch.autograd.gradgradcheck(taus, value, rtol=1e-4)
