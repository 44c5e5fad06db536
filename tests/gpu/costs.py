"""What a private step takes of a GPU: time and memory by micro-batch, waits and operations."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privctl.parallel import is_out_of_memory
from privctl.train.network.half_precision import hold_base
from privctl.train.network.memory import checkpointed
from tests.gpu.networks import POSITIONS, SIZES, TOY, Step, llama, peak_gib, plain, private, seconds, with_adapters
from tests.launches import Launches

Result = dict[str, Any]

MICRO = (1, 4, 16)
#: The sizes that memory is measured of; the largest with adapters, whose base bfloat16 halves.
MEASURED = {"1B": False, "3B": False, "7B": True}


def memory(device: torch.device, toy: bool) -> Iterator[Result]:
    """Time and peak of a private step and of a plain one, for every size, micro-batch, precision and checkpointing.

    bfloat16 comes first, and the largest micro-batch last, so that what is cut off by a time limit is worth least.
    """
    sizes = {"toy": False, "toy, adapters": True} if toy else MEASURED
    for bf16, (name, adapters), recomputed in itertools.product((True, False), sizes.items(), (True, False)):
        model = _network(TOY if toy else SIZES[name], device, adapters=adapters, bf16=bf16)
        model = checkpointed(model) if recomputed else model
        for examples in MICRO:
            row: Result = {
                "size": name, "adapters": adapters, "examples": examples, "bf16": bf16, "checkpointed": recomputed,
            }  # fmt: skip
            for name_of_way, step_of in (("plain", plain), ("private", private)):
                cost = _cost(step_of, model, row, device, toy)
                row |= {f"{name_of_way}_{key}": value for key, value in cost.items()}
            yield row
        del model


def _network(size: tuple[int, ...], device: torch.device, *, adapters: bool, bf16: bool) -> nn.Module:
    network = llama(size, device)
    if adapters:
        network = with_adapters(network)
        if bf16:
            hold_base(network)
    return network


def _cost(step_of: Callable[..., Step], model: nn.Module, row: Result, device: torch.device, toy: bool) -> Result:
    model.zero_grad()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        with step_of(model, row["examples"], POSITIONS[toy], device, bf16=row["bf16"]) as run:
            run()  # the first also compares with autograd
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            taken = seconds(run, device, 1, warm=1 if row["bf16"] else 0)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {"s": None, "gib": None}
    return {"s": taken, "gib": peak_gib(device)}


def waits(device: torch.device, toy: bool) -> Iterator[Result]:
    """Operations and waits of a micro-batch; on a GPU also the places that its own check of waits tells of."""
    model = llama(TOY if toy else SIZES["124M"], device)
    places_of_waits: list[str] = []
    with private(model, 4, POSITIONS[toy], device, bf16=True) as run:
        run()
        with Launches() as counted:
            run()
        if device.type == "cuda":
            places_of_waits = _places_of_waits(run)
    with plain(model, 4, POSITIONS[toy], device, bf16=True) as run, Launches() as base:
        run()
    yield {
        "operations": sum(counted.kernels.values()),
        "operations_plain": sum(base.kernels.values()),
        "waits": sum(counted.syncs.values()),
        "waits_plain": sum(base.syncs.values()),
        "told": places_of_waits,
    }


def _places_of_waits(run: Callable[[], None]) -> list[str]:
    """Where torch's own check says that a GPU was waited for."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]
