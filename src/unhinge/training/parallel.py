"""One process, or several through Lightning Fabric: what the loop asks of either."""

from __future__ import annotations

import os
import re
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from unhinge.extras import needed_for
from unhinge.training.shared_norm import share_batch_norm

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["SingleProcess", "Processes", "FabricProcesses", "first_words", "processes"]

MEETING = 300.0  # seconds that processes wait for each other at the start: a cluster may start them minutes apart


class Processes(Protocol):
    """The processes that share a run. `rank` 0 writes the files."""

    rank: int
    count: int
    device: torch.device

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]: ...

    def backward(self, loss: Tensor) -> None: ...

    def total(self, value: Tensor) -> Tensor: ...  # sum over all processes

    def synchronize(self, model: nn.Module) -> None: ...  # give all processes rank 0's buffers


class SingleProcess:
    """This process only, on the CPU or one device, in float32."""

    rank, count = 0, 1

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, optimizer

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def total(self, value: Tensor) -> Tensor:
        return value

    def synchronize(self, model: nn.Module) -> None:
        pass


class FabricProcesses:
    """Processes, devices and precision by Lightning Fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank: int = fabric.global_rank
        self.count: int = fabric.world_size
        self.device: torch.device = fabric.device

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        if self.count > 1:
            model = share_batch_norm(model, self.device)
        prepared: tuple[nn.Module, torch.optim.Optimizer] = self.fabric.setup(model, optimizer)
        return prepared

    def backward(self, loss: Tensor) -> None:
        self.fabric.backward(loss)

    def total(self, value: Tensor) -> Tensor:
        total = self.fabric.all_reduce(value.detach().clone(), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def synchronize(self, model: nn.Module) -> None:
        # Running means of batch norm are each process's own until the next forward pass shares them.
        for buffer in model.buffers() if self.count > 1 else ():
            torch.distributed.broadcast(buffer, src=0)


def processes(
    devices: int = 1, strategy: str = "auto", accelerator: str = "auto", precision: str = "32-true"
) -> Processes:
    """The processes asked for; Lightning is imported only where it is needed, for it takes seconds.

    With `strategy` ddp the other processes run the same command again, as `torchrun` would have it. A ConnectionError
    says that they did not all come.
    """
    plain = devices == 1 and strategy == "auto" and precision == "32-true" and "LOCAL_RANK" not in os.environ
    if plain and (accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())):
        return SingleProcess()
    if plain and accelerator == "auto":
        return SingleProcess(torch.accelerator.current_accelerator() or "cpu")
    with needed_for("a run on several devices, or with another strategy or precision,"):
        from lightning_fabric import Fabric
        from lightning_fabric.utilities.exceptions import MisconfigurationException
    import logging
    import warnings

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # It ends this process when one that it started has died, and says so as a mere information.
    logging.getLogger("lightning_fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", module="lightning_fabric")
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=cast(Any, precision))
    except MisconfigurationException as error:
        raise ValueError(str(error)) from None
    _meet(fabric)
    return FabricProcesses(fabric)


def _meet(fabric: Fabric) -> None:
    """Start the other processes and wait until all are there, but not for ever: one may be gone before it came.

    Torch has one patience for the meeting and for every later sum, of half an hour. The meeting gets a shorter one; the
    sums keep theirs, since a process may be busy for minutes between two of them.
    """
    strategy: Any = fabric.strategy
    usual: timedelta | None = getattr(strategy, "_timeout", None)  # what DDP and FSDP hand to torch
    if usual is not None:
        strategy._timeout = timedelta(seconds=MEETING)
    try:
        if usual is not None and fabric.global_rank > 0:
            place = strategy.cluster_environment
            _await(place.main_address, place.main_port)
        fabric.launch()
    except (OSError, RuntimeError) as error:
        raise ConnectionError(
            f"the {fabric.world_size} processes of this run did not meet within {MEETING:.0f} seconds: one of them did "
            f"not start, or ended before ({first_words(error)}). See what it said, and run the command again."
        ) from None
    if usual is not None and torch.distributed.is_initialized():
        torch.distributed.distributed_c10d._set_pg_timeout(usual)


def _await(host: str, port: int) -> None:
    """Wait until the first process listens; torch would, but fills the terminal with its stack each time it tries."""
    end = time.monotonic() + MEETING
    while True:
        try:
            socket.create_connection((host, port), timeout=MEETING).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def first_words(error: Exception) -> str:
    """What an error of torch says, on one line: without its stack, and the place in gloo's source it begins with."""
    line = re.sub(r"^\[[^]]*\.cc:\d+\] *", "", str(error)).partition("\n")[0]
    return line[:100].rstrip(".") or type(error).__name__
