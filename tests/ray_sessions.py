"""A real session of Ray for tests, or a skip that says why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from unhinge.cluster import using_ray

__all__ = ["ray_session"]

_refused: list[str] = []  # why the last start failed: what did not start once in this process is not waited for again


@contextmanager
def ray_session(workers: int) -> Iterator[Any]:
    """As `using_ray`, where Ray is installed and comes up within its own limit, which a busy machine may miss."""
    pytest.importorskip("ray", reason='pip install "unhinge[ray]"')
    if _refused:
        pytest.skip(_refused[0])
    with ExitStack() as stack:
        try:
            ray = stack.enter_context(using_ray(workers))
        except RuntimeError as error:
            if "did not start within its own time limit" not in str(error):
                raise
            _refused.append(str(error))
            pytest.skip(str(error))
        yield ray
