"""One process, or several through Lightning Fabric: what the loop asks of either."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from unhinge.extras import needed_for
from unhinge.training.shared_norm import share_batch_norm

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["SingleProcess", "Processes", "FabricProcesses", "processes"]


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

    With `strategy` ddp the other processes run the same command again, as `torchrun` would have it.
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
    warnings.filterwarnings("ignore", module="lightning_fabric")
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=cast(Any, precision))
    except MisconfigurationException as error:
        raise ValueError(str(error)) from None
    fabric.launch()
    return FabricProcesses(fabric)
