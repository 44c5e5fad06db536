"""A run from its first step to the model on disk."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import InputFault
from privctl.domain.report import PrivacyReport
from privctl.models.language import choose_device
from privctl.parallel import Workers, own_device
from privctl.randomness import NoiseSource
from privctl.show.progress import Advance
from privctl.storage.atomic import require_absent, write_bytes
from privctl.storage.digest import file_digest
from privctl.train.adapters import adapted, merged
from privctl.train.contribution.carried import secret_draws
from privctl.train.contribution.premises import Notify, clipping_of, gradient_stages, rehearsed, tested
from privctl.train.gradient_noise import GradientNoise, noise_for
from privctl.train.loop import FinishedRun, Trainer
from privctl.train.precision import FullPrecision, Precision
from privctl.train.prepare import TrainingJob
from privctl.train.released_model import rehearse, report_path, save_network
from privctl.train.reload_check import witness_of
from privctl.train.report import report_for, zeroed_of
from privctl.train.run_folder import RunFolder, SavedState
from privctl.train.sampling import BatchSource, Passes, PoissonBatches, WeightedBatches
from privctl.train.secret_posteriors import CheckedSecrets, check_secrets
from privctl.train.settings import TrainingMethod
from privctl.train.withheld import require_room, staged_private

#: (label, total, unit) -> a block that yields the function which advances it.
Progress = Callable[[str, float, str], AbstractContextManager[Advance]]
#: Hears of each epoch's numbers.
EpochCallback = Callable[[Mapping[str, float]], None]
#: A block that yields a function which says whether to stop after the step in progress.
Interrupts = AbstractContextManager[Callable[[], bool]]

AT_ONCE: Interrupts = nullcontext(lambda: False)


#: Makes a training's precision of its job and its network, once that is on its device.
PrecisionOf = Callable[[TrainingJob, nn.Module, torch.device], Precision]
#: From what the report of any training says to what it says of one method's.
Amend = Callable[[PrivacyReport, FinishedRun], PrivacyReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodHooks:
    """What a method has of its own: facts that must not change within a run, files beside them, precision, report."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    precision: PrecisionOf = lambda job, network, device: FullPrecision()
    amend: Amend = lambda report, finished: report


NO_HOOKS = MethodHooks()


def run_training(
    job: TrainingJob,
    workers: Workers,
    progress: Progress,
    on_epoch: EpochCallback = lambda _: None,
    interrupts: Interrupts = AT_ONCE,
    hooks: MethodHooks = NO_HOOKS,
    notify: Notify = lambda _: None,
) -> PrivacyReport | None:
    """Train, save the model and its report at the output, and return the report (None but in the leading process).

    The state of an unfinished run lies in a folder beside the output until then. ``interrupts`` is entered for the
    training alone; ``notify`` hears what the user should know before it. Raises PrivctlError in one sentence for what
    cannot go on; what was saved before stays.
    """
    request, recipe = job.request, job.recipe
    output = request.output
    if workers.is_main:
        require_absent(output, force=False)
        require_absent(report_path(output), request.force)
        require_room(request)
    secrets = _checked(job, workers, progress)
    try_out(job, workers)
    device = own_device(choose_device(request.device))
    network = adapted(job.model.network, request.model).to(device)
    network = prepared(network, job)
    # Before the folder, for they may refuse what was asked.
    if request.method is not TrainingMethod.PLAIN:
        job = tested(job, network, device, gradient_stages(job, network, device), notify)
    precision = hooks.precision(job, network, device)
    job = rehearsed(job, network, device, precision)
    secret_draws(network)
    folder, start = open_folder(job, workers, hooks.facts)
    if folder is not None:
        for name, content in hooks.files.items():
            write_bytes(folder.path / name, content)
    noise = noise_for(device) if request.method.noised else None
    trainer = Trainer(
        network=network,
        task=job.task,
        recipe=recipe,
        clipping=None if request.method is TrainingMethod.PLAIN else clipping_of(job),
        batches=_batches(job, workers),
        noise=noise,
        workers=workers,
        device=device,
        precision=precision,
        folder=folder,
        evaluate=lambda trained: measured(job, trained, device, on_epoch),
    )
    done = start.step if start else 0
    with folder or nullcontext(), progress(f"training ({request.method})", recipe.steps - done, "steps") as advance:
        trainer.advance = advance
        with interrupts as stop:
            finished = trainer.run(start, stop)
        if not workers.is_main:
            return None
        with keeping(folder):
            report = _save(job, network, finished, noise, secrets, hooks.amend)
    if folder is not None:
        folder.remove()
    return report


def _checked(job: TrainingJob, workers: Workers, progress: Progress) -> CheckedSecrets | None:
    """The numbers of the plan, found to be right before anything is spent; only who reports needs them."""
    if job.plan is None or not workers.is_main:
        return None
    return check_secrets(job.plan, job.recipe.noise_multiplier, progress)


def _save(
    job: TrainingJob,
    network: nn.Module,
    finished: FinishedRun,
    noise: GradientNoise | None,
    secrets: CheckedSecrets | None,
    amend: Amend,
) -> PrivacyReport:
    witness = witness_of(job.model, network)  # of the network as it was measured, before anything is done to it
    with staged_private(job.request, finished.history, list(zeroed_of(finished))) as private:
        return save_network(
            merged(network, job.request.model),
            job.model.companion,
            job.request.output,
            lambda place, outputs: amend(report_for(job, finished, noise, place, outputs, secrets), finished),
            witness=witness,
            force=job.request.force,
            beside=private,
        )


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


def open_folder(
    job: TrainingJob, workers: Workers, more: Mapping[str, Any] = MappingProxyType({})
) -> tuple[RunFolder | None, SavedState | None]:
    """The run's folder, and what it goes on from. Processes that do not lead read the state and write nothing.

    ``more`` are facts that must not change between the parts of the run, beside those of every run.
    """
    path, fingerprint = run_folder(job.request.output), {**_fingerprint(job), **more}
    if job.request.resume:
        opened, saved = RunFolder.resume(path, fingerprint)
        workers.barrier()  # else the first to go on would change what the others have yet to read
        return (opened if workers.is_main else None), saved
    begun = RunFolder.begin(path, fingerprint) if workers.is_main else None
    workers.barrier()
    return begun, None


def _fingerprint(job: TrainingJob) -> dict[str, Any]:
    """What must not change between the parts of one run."""
    request, recipe = job.request, job.recipe
    settings = {name: getattr(recipe, name) for name in recipe.__slots__ if not name.startswith("micro")}
    facts = {
        **settings,
        "clipping": request.clipping,
        "task": request.task,
        "examples": len(job.task),
        "data": file_digest(request.data.train) if request.data.train.is_file() else str(request.data.train),
        "unit": request.data.unit,
        "secrets": None if job.plan is None else job.plan.digest,
        "labels": job.model.labels,
        "long": request.data.long,
        "max_length": request.data.max_length,
        "response_only": request.data.response_only,
        "resize": request.data.resize,
        "model": str(request.model.path),
        "from_scratch": request.model.from_scratch,
        "vocabulary": request.model.vocabulary,
        "norm": request.model.norm,
        "dropout": request.model.dropout,
        "trained": list(request.model.train),
        "lora_rank": request.model.lora_rank,
        "seed": request.seed,
    }
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found


def _batches(job: TrainingJob, workers: Workers) -> BatchSource:
    if job.plan is not None:
        return WeightedBatches(job.plan.protection.probabilities, shared_source(workers))
    if job.request.method.noised:
        return PoissonBatches(len(job.task), job.recipe.sample_rate, shared_source(workers))
    return Passes(len(job.task), job.request.batch_size, job.request.seed)


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
