"""What the runs of all methods share: the network's set-up, a common source of batches, held-out metrics."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from privctl.models.stored import as_empty, as_if_filled, is_stored
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.network.adapters import adapted, merged
from privctl.train.network.half_precision import widen
from privctl.train.network.memory import checkpointed
from privctl.train.preparation.job import TrainingJob
from privctl.train.release.adapter import released_adapter
from privctl.train.release.model import rehearse
from privctl.train.release.reload_check import reference_answers
from privctl.train.settings.session import EpochCallback


def rehearsed_network(job: TrainingJob, workers: Workers, device: torch.device | None = None) -> nn.Module:
    """The network to train, after a rehearsal of its release, so that no run starts whose result cannot be released.

    The release of a network whose weights are still in files is rehearsed when they are read. Raises as ``rehearse``
    and ``adapted`` do.
    """
    request, plain = job.request, job.model.network
    if is_stored(plain):
        as_if_filled(plain)
        network = adapted(plain, request.model, request.seed)
        as_empty(network)
        return network
    if request.model.adapter_only:
        network = adapted(plain, request.model, request.seed, device)
        rehearse_release(job, workers, network)
        return network
    rehearse_release(job, workers, plain)
    return adapted(plain, request.model, request.seed)


def rehearse_release(job: TrainingJob, workers: Workers, network: nn.Module, *, merge: bool = False) -> None:
    """Write the released part of the main process's ``network`` and read it back, unless the run is resumed.

    With ``merge``, adapters are merged first if they will be. Raises as ``rehearse`` does, in all processes.
    """

    def write_and_read() -> None:
        if merge and not job.request.model.adapter_only:
            widen(network)
        reference = reference_answers(job.model, network)
        adapter = released_adapter(network, job.model, job.request.model)
        released = merged(network, job.request.model) if merge else network
        rehearse(released, job.model.companion, job.request.output, reference, adapter)

    if not job.request.resume:
        workers.in_main(write_and_read)


def shared_source(workers: Workers, key: bytes | None = None) -> NoiseSource:
    """A secret random source for batches with the main process's ``key``, or a fresh one, in all processes."""
    source = NoiseSource(key=key)
    if workers.size > 1:
        shared = torch.tensor(list(source.key), dtype=torch.int64)
        source = NoiseSource(key=bytes(workers.broadcast(shared).tolist()))
    return source


def prepared(network: nn.Module, job: TrainingJob) -> nn.Module:
    """The network, with gradient checkpointing if requested. Raises InputError if it does not support that."""
    return checkpointed(network) if job.request.model.checkpointing else network


def measure_held_out(
    job: TrainingJob,
    network: nn.Module,
    device: torch.device,
    workers: Workers,
    on_epoch: EpochCallback = lambda _: None,
) -> Mapping[str, float]:
    """The network's metrics on held-out examples, also passed to ``on_epoch``; empty without such examples.

    Every process must call this: they share the work, so that none times out while waiting for another.
    """
    scores = {} if job.held_out is None else job.held_out.evaluate(network, device, workers)
    measures = {f"held_out_{name}": value for name, value in scores.items()}
    on_epoch(measures)
    return measures
