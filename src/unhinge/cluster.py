"""A session of Ray: the one in use, that of the cluster that RAY_ADDRESS names, or a new one on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unhinge.extras import needed_for

__all__ = ["using_ray"]

OBJECT_STORE = 2**28  # bytes on this machine: what travels are summaries and records; what is larger goes to the disk
# Ray gives its agent 15 seconds to start (github.com/ray-project/ray/issues/65983), which a busy machine may not have;
# the second time its files are in the memory already.
TRIALS = 3


@contextmanager
def using_ray(workers: int | None) -> Iterator[Any]:
    """The module ``ray`` with a session, which is ended after the block if it began with it.

    Nothing is reported to Ray's makers, and there is no dashboard.

    Arguments:
        workers: CPUs of a session that is begun on this machine; None: all.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needed_for("the engine ray"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    if "RAY_ADDRESS" not in os.environ:
        options |= {"num_cpus": workers, "object_store_memory": OBJECT_STORE, "_node_ip_address": "127.0.0.1"}
    try:
        _start(ray, options)
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, options: dict[str, Any]) -> None:
    for trial in range(1, TRIALS + 1):
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises no class of its own here
            ray.shutdown()
            if "timed out during startup" not in str(error):
                raise
            if trial == TRIALS:
                raise RuntimeError(
                    f"Ray did not start within its own time limit, {TRIALS} times. The machine may be too busy: try "
                    "again later, use engine local, or start Ray yourself (`ray start --head`) and set RAY_ADDRESS."
                ) from error
        else:
            return
