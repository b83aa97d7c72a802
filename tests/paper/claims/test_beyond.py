"""Our own statements hold, and each check fails a formula that is a little wrong."""

from __future__ import annotations

import pytest
import torch

from unhinge.paper.claims import claims, find, own_statements

WRONG = {
    "beyond-gradient-at-zero": lambda right: lambda *given: right(*given) * (1 + 1e-12),
    "beyond-kernel-sums": lambda right: lambda kernel, labels, *given: right(kernel, labels.roll(1), *given),
    "beyond-prior-path": lambda right: lambda labels, prior, *given: right(labels, torch.roll(prior, 1), *given),
    "beyond-bound": lambda right: lambda *given: 0.2 * right(*given),
    "beyond-posterior": lambda right: lambda logits, radius: right(logits, 1.01 * radius),
}


@pytest.mark.parametrize("statement", own_statements(), ids=lambda statement: statement.id)
def test_a_statement_of_ours_holds_and_can_fail(statement):
    assert statement.run().verdict == "holds"
    assert statement.residual(WRONG[statement.id](statement.ours)) > statement.tolerance


def test_they_are_counted_apart_from_the_papers():
    assert {statement.id for statement in own_statements()} == set(WRONG)
    assert not {statement.id for statement in own_statements()} & {statement.id for statement in claims()}
    assert set(find("beyond")) == set(own_statements())
