"""What the runs of all methods share: the network's set-up, a common source of batches, held-out measures."""

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
from privctl.train.release.reload_check import witness_of
from privctl.train.settings.session import EpochCallback


def adapted_once_tried(job: TrainingJob, workers: Workers, device: torch.device | None = None) -> nn.Module:
    """The network to train, after what will be released of it was written and read again: adapters alone, or all.

    No run begins whose result cannot be released. A network whose weights are yet in files is tried out once it is
    read. Raises as ``rehearse`` and ``adapted``.
    """
    request, plain = job.request, job.model.network
    if is_stored(plain):
        as_if_filled(plain)
        network = adapted(plain, request.model, request.seed)
        as_empty(network)
        return network
    if request.model.adapter_only:
        network = adapted(plain, request.model, request.seed, device)
        try_out(job, workers, network)
        return network
    try_out(job, workers, plain)
    return adapted(plain, request.model, request.seed)


def try_out(job: TrainingJob, workers: Workers, network: nn.Module, *, release: bool = False) -> None:
    """Write what will be released of the main process's ``network`` and read it again, unless the run is resumed.

    Adapters that will be merged are, where ``release`` asks for it. Raises as ``rehearse``, in all processes.
    """

    def write_and_read() -> None:
        if release and not job.request.model.adapter_only:
            widen(network)
        witness = witness_of(job.model, network)
        adapter = released_adapter(network, job.model, job.request.model)
        released = merged(network, job.request.model) if release else network
        rehearse(released, job.model.companion, job.request.output, witness, adapter)

    if not job.request.resume:
        workers.in_main(write_and_read)


def shared_source(workers: Workers, key: bytes | None = None) -> NoiseSource:
    """A secret random source for batches, shared by all processes under the main one's ``key``, or a fresh one."""
    source = NoiseSource(key=key)
    if workers.size > 1:
        shared = torch.tensor(list(source.key), dtype=torch.int64)
        source = NoiseSource(key=bytes(workers.broadcast(shared).tolist()))
    return source


def prepared(network: nn.Module, job: TrainingJob) -> nn.Module:
    """The network, checkpointed if that was requested. Raises InputError for one that cannot be."""
    return checkpointed(network) if job.request.model.checkpointing else network


def measured(
    job: TrainingJob,
    network: nn.Module,
    device: torch.device,
    workers: Workers,
    on_epoch: EpochCallback = lambda _: None,
) -> Mapping[str, float]:
    """The network's measures on held-out examples, also passed to ``on_epoch``; empty without such examples.

    Every process must ask: they share the work, so that none waits for another until it is taken for dead.
    """
    scores = {} if job.held_out is None else job.held_out.evaluate(network, device, workers)
    measures = {f"held_out_{name}": value for name, value in scores.items()}
    on_epoch(measures)
    return measures
