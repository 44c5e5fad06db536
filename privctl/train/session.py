"""What the runs of all methods share: processes and callbacks, the folder of the run's state, the network's set-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn

from privctl.domain.errors import InputError
from privctl.domain.progress import DetailedProgress, Notify, Progress, unseen
from privctl.models.stored import as_empty, as_if_filled, is_stored
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.storage.atomic import write_bytes
from privctl.train.adapters import adapted, merged
from privctl.train.fingerprint import fingerprint_of
from privctl.train.half_precision import widen
from privctl.train.memory import checkpointed
from privctl.train.prepare import TrainingJob
from privctl.train.released_adapter import released_adapter
from privctl.train.released_model import rehearse
from privctl.train.reload_check import witness_of
from privctl.train.run_folder import RunFolder, SavedState

#: Called with each epoch's measures.
EpochCallback = Callable[[Mapping[str, float]], None]
#: A context manager that yields a function: whether to stop after the current step.
Interrupts = AbstractContextManager[Callable[[], bool]]

NO_INTERRUPT_HANDLING: Interrupts = nullcontext(lambda: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The processes that train, and the callbacks that observe and stop them.

    ``detailed`` shows the training itself, where it is more than ``progress``. ``interrupts`` is entered for the
    training loop only; ``notify`` receives what the user should know before training starts.
    """

    workers: Workers = field(default_factory=Workers)
    progress: Progress = unseen
    detailed: DetailedProgress | None = None
    on_epoch: EpochCallback = lambda _: None
    interrupts: Interrupts = NO_INTERRUPT_HANDLING
    notify: Notify = lambda _: None


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


@contextmanager
def mention_saved_state(folder: RunFolder | None) -> Iterator[None]:
    """If the trained model cannot be written, extend the error to say that the training is saved."""
    try:
        yield
    except InputError as fault:
        if folder is None:
            raise
        raise InputError(f"{fault}; the training is saved in {folder.path}, so continue with --resume") from None


def run_folder(output: Path) -> Path:
    """The folder with the state of an unfinished run for ``output``."""
    return output.with_name(output.name + ".run")


def open_folder(
    job: TrainingJob, workers: Workers, files: Mapping[str, bytes] = MappingProxyType({})
) -> tuple[RunFolder | None, SavedState | None]:
    """The run's folder, with ``files`` by name in it, and the state to continue from.

    Only the main process writes; the others get no folder, but raise what it raises.
    """
    path = run_folder(job.request.output)
    resumed = RunFolder.resume(path, fingerprint_of(job)) if job.request.resume else None
    workers.barrier()  # no process may change the state before all have read it

    def opened() -> RunFolder:
        folder = RunFolder.begin(path, fingerprint_of(job)) if resumed is None else resumed[0]
        for name, content in files.items():
            write_bytes(folder.path / name, content)
        return folder

    return workers.in_main(opened), None if resumed is None else resumed[1]


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
