"""Where the network of a job lies: whole on a device, or in shards of all processes, and whole again in the end."""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from torch import nn

from privctl.domain.errors import CommandError
from privctl.models.stored import is_stored, stored_as
from privctl.parallel import Workers
from privctl.train.network.half_precision import hold_base
from privctl.train.network.sharding import Hollow, hollow, shard
from privctl.train.preparation.job import TrainingJob
from privctl.train.runs.setup import try_out
from privctl.train.settings.request import RetrainRequest


def in_step(request: RetrainRequest, workers: Workers) -> Workers:
    """The ``workers`` as they train the model of ``request``: in lockstep where each is to hold a shard of it.

    Raises CommandError where they cannot share it.
    """
    if not request.fsdp:
        return workers
    if workers.size == 1:
        raise CommandError(
            "--fsdp shares one model among several processes; start them with torchrun --nproc-per-node N -m privctl, "
            "or remove it"
        )
    if request.model.base_bits is not None:
        raise CommandError(
            "--fsdp does not share a base in 4 bits, whose codes are no rows of a weight; remove --base-bits (a base "
            "that its file stores in bfloat16 is kept in that) or --fsdp"
        )
    return replace(workers, lockstep=True)


def placed(
    network: nn.Module, job: TrainingJob, workers: Workers, device: torch.device, *, hold: bool
) -> tuple[nn.Module, Hollow | None]:
    """The network on its device, in shards where that is asked for; and then what ``gathered`` fills.

    With ``hold`` frozen weights are kept in bfloat16 as ``hold_base`` says. A model that is read in shards is tried out
    now, as ``adapted_once_tried`` does with others.
    """
    if not job.request.fsdp:
        network = network.to(device)
        if hold:
            hold_base(network)
        return network, None
    if hold:
        _hold_in_step(network, workers)
    unread, spare = is_stored(network), hollow(network, job.model)
    rehearsed = hollow(network, job.model) if unread else None
    shard(network, workers, device)
    if rehearsed is not None:
        for file in job.model.files:
            file.close()
        full, tried = gathered(network, job, rehearsed, workers)
        try_out(tried, workers, full, release=True)
    return network, spare


def _hold_in_step(network: nn.Module, workers: Workers) -> None:
    """``hold_base`` in all processes, as the files or the numbers in the main process say."""
    if is_stored(network):
        hold_base(network, stored_as(network, torch.bfloat16))
        return

    def held() -> bytes:
        weights = {id(weight) for weight in hold_base(network)}
        return json.dumps([name for name, p in network.named_parameters() if id(p) in weights]).encode()

    names = json.loads(workers.once(held))
    if not workers.is_main:
        hold_base(network, names)


def gathered(
    network: nn.Module, job: TrainingJob, spare: Hollow | None, workers: Workers
) -> tuple[nn.Module, TrainingJob]:
    """The trained network and its job, whole again in the main process; every process must call this."""
    if spare is None:
        return network, job
    full, model = workers.jointly(lambda: spare.filled(network, workers, job.request.output.parent))
    return full, replace(job, model=model)
