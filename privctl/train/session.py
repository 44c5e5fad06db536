"""What every method's run has in common: who trains and watches, the folder of its state, how its network is set up."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import InputFault
from privctl.domain.progress import Notify, Progress, unseen
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.storage.digest import file_digest
from privctl.train.prepare import TrainingJob
from privctl.train.released_model import rehearse
from privctl.train.reload_check import witness_of
from privctl.train.run_folder import RunFolder, SavedState

#: Hears of each epoch's numbers.
EpochCallback = Callable[[Mapping[str, float]], None]
#: A block that yields a function which says whether to stop after the step in progress.
Interrupts = AbstractContextManager[Callable[[], bool]]

AT_ONCE: Interrupts = nullcontext(lambda: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The processes that train, and who watches and may stop them.

    ``interrupts`` is entered for the training alone; ``notify`` is told what the user should know before it.
    """

    workers: Workers = field(default_factory=Workers)
    progress: Progress = unseen
    on_epoch: EpochCallback = lambda _: None
    interrupts: Interrupts = AT_ONCE
    notify: Notify = lambda _: None


def try_out(job: TrainingJob, workers: Workers) -> None:
    """Write the network before it is trained, and load it as others will: what cannot be released is not begun."""
    if workers.is_main and not job.request.resume:
        network = job.model.network
        rehearse(network, job.model.companion, job.request.output, witness_of(job.model, network))


@contextmanager
def keeping(folder: RunFolder | None) -> Iterator[None]:
    """Where a trained model cannot be written, say that the training is not lost."""
    try:
        yield
    except InputFault as fault:
        if folder is None:
            raise
        raise InputFault(f"{fault}; the training is kept in {folder.path}, go on with --resume") from None


def run_folder(output: Path) -> Path:
    """Where the state of an unfinished run for ``output`` lies."""
    return output.with_name(output.name + ".run")


def open_folder(job: TrainingJob, workers: Workers) -> tuple[RunFolder | None, SavedState | None]:
    """The run's folder, and what it goes on from. Processes that do not lead read the state and write nothing."""
    path, fingerprint = run_folder(job.request.output), _fingerprint(job)
    if job.request.resume:
        opened, saved = RunFolder.resume(path, fingerprint)
        workers.barrier()  # else the first to go on would change what the others have yet to read
        return (opened if workers.is_main else None), saved
    begun = RunFolder.begin(path, fingerprint) if workers.is_main else None
    workers.barrier()
    return begun, None


#: Settings that may change between the parts of one run: where it computes, how much at once, what it shows.
_MAY_CHANGE = {
    "output", "resume", "force", "show_unprotected", "device", "compiled", "checkpointing", "held_out", "derivatives",
    "micro_examples", "micro_tokens",
}  # fmt: skip


def _fingerprint(job: TrainingJob) -> dict[str, Any]:
    """What must not change between the parts of one run: all that was asked for and all that followed from it."""
    request, train = job.request, job.request.data.train
    facts = {
        **_settings_of(job.recipe),
        **_settings_of(request),
        "examples": len(job.task),
        "data": {
            **_settings_of(request.data),
            "train": file_digest(train) if train.is_file() else str(train),
        },
        "delta": job.delta,
        "secrets": None if job.plan is None else job.plan.digest,
        "labels": job.model.labels,
    }
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found


def _settings_of(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them, those of dataclasses in it too."""
    found: dict[str, Any] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.name in _MAY_CHANGE:
            continue
        if is_dataclass(value):
            found[each.name] = _settings_of(value)
        elif isinstance(value, bytes):
            found[each.name] = value.hex()
        else:
            found[each.name] = str(value) if isinstance(value, Path) else value
    return found


def shared_source(workers: Workers) -> NoiseSource:
    """A source of batches that all processes know and nobody else: the first one's key."""
    source = NoiseSource()
    if workers.size > 1:
        key = torch.tensor(list(source.key), dtype=torch.int64)
        source = NoiseSource(key=bytes(workers.broadcast(key).tolist()))
    return source


def prepared(network: nn.Module, job: TrainingJob) -> nn.Module:
    """The network, set up to save memory or time as was asked."""
    if job.request.model.checkpointing:
        # The newer name where transformers has it.
        names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        enable: Any = next(getattr(network, name) for name in names if hasattr(network, name))
        enable({"use_reentrant": False})
    if job.request.compiled:
        # The first batch is differentiated several times, which donated buffers do not live through.
        importlib.import_module("torch._functorch.config").donated_buffer = False  # type: ignore[attr-defined]
        network.compile()
    return network


def measured(
    job: TrainingJob, network: nn.Module, device: torch.device, on_epoch: EpochCallback
) -> Mapping[str, float]:
    """The network's measures on held-out examples, told to ``on_epoch``; none without such examples."""
    found = {} if job.held_out is None else job.held_out.evaluate(network, device)
    measures = {f"held_out_{name}": value for name, value in found.items()}
    on_epoch(measures)
    return measures
