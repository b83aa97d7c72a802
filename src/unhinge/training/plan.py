"""What a run would cost: parameters, FLOPs, and a few steps timed on the present device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import torch

from unhinge.data import MissingFile, batches, blank, num_batches
from unhinge.nn.backbones import count_flops, count_parameters
from unhinge.training.loop import material_of
from unhinge.training.network import ManyClassAdapter, network_of, prototypes_of
from unhinge.training.objective import objective_of
from unhinge.training.recipe import Recipe

__all__ = ["Plan", "plan_of"]

TIMED = 3  # steps


@dataclass(frozen=True)
class Plan:
    """The size of a run."""

    train_images: int
    steps: int
    parameters: int
    flops_per_image: int  # of a forward pass
    flops: float  # of the whole run, backward counted as two forward passes
    seconds: float  # estimated, on this device
    data_found: bool = True  # else the numbers are those of the published sizes, with classes of equal size

    def __str__(self) -> str:
        minutes = self.seconds / 60
        long = (
            f"{minutes / 60:.1f} hours"
            if minutes > 90
            else f"{minutes:.1f} minutes"
            if minutes > 2
            else f"{self.seconds:.0f} s"
        )
        return (
            f"{self.train_images:,} images, {self.steps:,} steps, {self.parameters:,} parameters, "
            f"{self.flops_per_image / 1e6:,.1f} MFLOP per image and pass, {self.flops:.3g} FLOP in all, "
            f"about {long} on this device"
        )


def plan_of(recipe: Recipe, data_root: str | Path | None, device: torch.device) -> Plan:
    """Count, and time a few steps on `device`; where the data set is missing, on black images of its size."""
    data_found = True
    try:
        material = material_of(recipe, data_root)
    except MissingFile:
        if (splits := blank(recipe.data)) is None:
            raise
        material, data_found = material_of(recipe, splits=splits), False
    network = network_of(recipe, material.train)
    flops = count_flops(network, (1, *material.train.images.shape[1:]))
    objective = objective_of(recipe, material.train.counts)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    feed = batches(material.train.to(device), recipe.batch, seed=0, memory_format=torch.channels_last)
    moments = [time.perf_counter()]
    for x, y in islice(feed, TIMED):
        logits, features = network(x, return_features=True)
        total = objective.weight_of(y).sum()
        if isinstance(network.head, ManyClassAdapter):
            loss = objective.combined(network.head.losses(features, y), features, y, total, len(y))
        else:
            loss = objective(logits, features, y, prototypes_of(network), total, len(y))
        loss.backward()
        if isinstance(network.head, ManyClassAdapter):
            network.head.step(recipe.head_rate, recipe.batch)
        loss.item()  # waits for a device that works behind our back
        moments.append(time.perf_counter())
    steps = num_batches(material.train, recipe.batch) * recipe.epochs
    images = len(material.train) * recipe.epochs
    evaluation = len(material.test) * recipe.epochs / max(recipe.batch, 1) / 3  # a forward pass is a third of a step
    return Plan(
        train_images=len(material.train),
        steps=steps,
        parameters=count_parameters(network),
        flops_per_image=flops,
        flops=3.0 * flops * images,
        seconds=min(end - begin for begin, end in pairwise(moments)) * (steps + evaluation),
        data_found=data_found,
    )
