"""A private step of parameters in shards (FSDP2), by NCCL with one process, against the whole network.

One GPU shows that the collectives run there, that gradients are the same and what gathering costs; not what several
GPUs save.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from privctl.parallel import Workers, backends_for
from privctl.train.clipping import Clipping, PerExample
from privctl.train.clipping.shards import whole
from privctl.train.network.sharding import shard
from privctl.train.steps.gradient_noise import noise_for
from tests.gpu.networks import POSITIONS, SIZES, TOY, llama, peak_gib, private, seconds
from tests.train.clipping.support import Gradients, causal, distance, tokens

Result = dict[str, Any]
#: How far gradients in shards may be from those of the whole network, relative to their length.
_FURTHEST = 1e-4


def shards(device: torch.device, toy: bool) -> Iterator[Result]:
    """The distance between both ways' clipped gradients, and the time and peak of each way's step."""
    size = TOY if toy else SIZES["1B"]
    with _alone(device) as workers:
        expected = _gradients(_unsharded(TOY, device), device)
        found = _gradients(_shared(TOY, workers, device), device)
        error = distance(found, expected)
        yield {"way": "clipped gradients, in shards against whole", "distance": error}
        if not error < _FURTHEST:
            raise AssertionError(f"gradients in shards are {error:.1e} from those of the whole network")
        for layout in ("whole", "in shards"):
            model = _unsharded(size, device) if layout == "whole" else _shared(size, workers, device)
            yield {"way": layout, **_step(model, device, toy)}
            del model


@contextmanager
def _alone(device: torch.device) -> Iterator[Workers]:
    """A group of this process by itself, which passes go through all the same."""
    with tempfile.NamedTemporaryFile() as meeting:
        dist.init_process_group(backends_for(device), init_method=f"file://{meeting.name}", rank=0, world_size=1)
        try:
            yield Workers(rank=0, size=1, lockstep=True)
        finally:
            dist.destroy_process_group()


def _unsharded(size: tuple[int, ...], device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return llama(size, device)


def _shared(size: tuple[int, ...], workers: Workers, device: torch.device) -> nn.Module:
    network = _unsharded(size, device)
    shard(network, workers, device)
    return network


def _gradients(network: nn.Module, device: torch.device) -> Gradients:
    ids = tokens(4, 9, TOY[-1])["input_ids"].to(device)
    with PerExample(network, Clipping(norm=0.5)) as engine:
        engine.accumulate(lambda: causal(network, {"input_ids": ids}))
    return {name: whole(p.grad).cpu() for name, p in network.named_parameters() if p.grad is not None}


def _step(model: nn.Module, device: torch.device, toy: bool) -> Result:
    noise, turns = noise_for(device), iter(range(1 << 30))
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with private(model, 4, POSITIONS[toy], device, bf16=True) as run:

        def step() -> None:
            run()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            noise.release([g if not hasattr(g, "to_local") else g.to_local() for g in gradients], 1.0, next(turns))

        return {"s": seconds(step, device, 3), "gib": peak_gib(device)}
