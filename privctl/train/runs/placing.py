"""Places the network of a job on a device, or in shards across all processes, and gathers it at the end."""

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
from privctl.train.runs.setup import rehearse_release
from privctl.train.settings.request import RetrainRequest


def lockstep_workers(request: RetrainRequest, workers: Workers) -> Workers:
    """The ``workers`` for the training of ``request``: in lockstep if each holds a shard of the model.

    Raises CommandError if they cannot share the model.
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


def place_network(
    network: nn.Module, job: TrainingJob, workers: Workers, device: torch.device, *, hold: bool
) -> tuple[nn.Module, Hollow | None]:
    """The network on its device, and None; with ``--fsdp``, its shards, and a hollow copy for ``gather_network``.

    With ``hold``, frozen weights are kept in bfloat16 (see ``hold_base``). The release of a model that is read in
    shards is rehearsed here; ``rehearsed_network`` does that for other models.
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
        full, tried = gather_network(network, job, rehearsed, workers)
        rehearse_release(tried, workers, full, merge=True)
    return network, spare


def _hold_in_step(network: nn.Module, workers: Workers) -> None:
    """Call ``hold_base`` in all processes for the same weights: by the files, or as chosen in the main process."""
    if is_stored(network):
        hold_base(network, stored_as(network, torch.bfloat16))
        return

    def held() -> bytes:
        weights = {id(weight) for weight in hold_base(network)}
        return json.dumps([name for name, p in network.named_parameters() if id(p) in weights]).encode()

    names = json.loads(workers.once(held))
    if not workers.is_main:
        hold_base(network, names)


def gather_network(
    network: nn.Module, job: TrainingJob, spare: Hollow | None, workers: Workers
) -> tuple[nn.Module, TrainingJob]:
    """The trained network and its job, without shards in the main process. Every process must call this."""
    if spare is None:
        return network, job
    full, model = workers.jointly(lambda: spare.filled(network, workers, job.request.output.parent))
    return full, replace(job, model=model)
