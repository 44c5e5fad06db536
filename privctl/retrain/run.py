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
from privctl.models import choose_device
from privctl.parallel import Crew, own_device
from privctl.progress import Advance
from privctl.randomness import NoiseSource
from privctl.retrain.adapt import adapted, merged
from privctl.retrain.contribution import Told, clipping_of, gradient_stages, rehearsed, tested
from privctl.retrain.prepare import Job
from privctl.retrain.report import report_for, zeroed_of
from privctl.retrain.secret_check import CheckedSecrets, check_secrets
from privctl.retrain.withheld import require_room, write_private
from privctl.storage.atomic import require_absent, write_bytes
from privctl.storage.digest import file_digest
from privctl.training.batches import BatchSource, Passes, PoissonBatches, WeightedBatches
from privctl.training.contribution.carried import secret_draws
from privctl.training.loop import Finished, Trainer
from privctl.training.noise import GradientNoise, noise_for
from privctl.training.precision import FullPrecision, Precision
from privctl.training.recipe import Method
from privctl.training.release import rehearse, report_path, save_network
from privctl.training.state import RunFolder, Saved
from privctl.training.witness import witness_of

#: (label, total, unit) -> a block that yields the function which advances it.
Progress = Callable[[str, float, str], AbstractContextManager[Advance]]
#: Hears of each epoch's numbers.
Listener = Callable[[Mapping[str, float]], None]
#: A block that yields a function which says whether to stop after the step in progress.
Interrupts = AbstractContextManager[Callable[[], bool]]

AT_ONCE: Interrupts = nullcontext(lambda: False)


#: Makes a training's precision of its job and its network, once that is on its device.
PrecisionOf = Callable[[Job, nn.Module, torch.device], Precision]
#: From what the report of any training says to what it says of one method's.
Amend = Callable[[PrivacyReport, Finished], PrivacyReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What a method has of its own: facts that must not change within a run, files beside them, precision, report."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    precision: PrecisionOf = lambda job, network, device: FullPrecision()
    amend: Amend = lambda report, finished: report


_USUAL = Way()


def carry_out(
    job: Job,
    crew: Crew,
    progress: Progress,
    heard: Listener = lambda _: None,
    interrupts: Interrupts = AT_ONCE,
    way: Way = _USUAL,
    told: Told = lambda _: None,
) -> PrivacyReport | None:
    """Train, save the model and its report at the output, and return the report (None but in the leading process).

    The state of an unfinished run lies in a folder beside the output until then. ``interrupts`` is entered for the
    training alone; ``told`` hears what the user should know before it. Raises PrivctlError in one sentence for what
    cannot go on; what was saved before stays.
    """
    request, recipe = job.request, job.recipe
    output = request.output
    if crew.leads:
        require_absent(output, force=False)
        require_absent(report_path(output), request.force)
        require_room(request)
    secrets = _checked(job, crew, progress)
    try_out(job, crew)
    device = own_device(choose_device(request.device))
    network = adapted(job.model.network, request.model).to(device)
    network = prepared(network, job)
    # Before the folder, for they may refuse what was asked.
    if request.method is not Method.PLAIN:
        job = tested(job, network, device, gradient_stages(job, network, device), told)
    precision = way.precision(job, network, device)
    job = rehearsed(job, network, device, precision)
    secret_draws(network)
    folder, start = open_folder(job, crew, way.facts)
    if folder is not None:
        for name, content in way.files.items():
            write_bytes(folder.path / name, content)
    noise = noise_for(device) if request.method.noised else None
    trainer = Trainer(
        network=network,
        task=job.task,
        recipe=recipe,
        clipping=None if request.method is Method.PLAIN else clipping_of(job),
        batches=_batches(job, crew),
        noise=noise,
        crew=crew,
        device=device,
        precision=precision,
        folder=folder,
        evaluate=lambda trained: measured(job, trained, device, heard),
    )
    done = start.step if start else 0
    with folder or nullcontext(), progress(f"training ({request.method})", recipe.steps - done, "steps") as advance:
        trainer.advance = advance
        with interrupts as stop:
            finished = trainer.run(start, stop)
        if not crew.leads:
            return None
        with keeping(folder):
            report = _save(job, network, finished, noise, secrets, way.amend)
        write_private(request, finished.history, list(zeroed_of(finished)))
    if folder is not None:
        folder.remove()
    return report


def _checked(job: Job, crew: Crew, progress: Progress) -> CheckedSecrets | None:
    """The numbers of the plan, found to be right before anything is spent; only who reports needs them."""
    if job.plan is None or not crew.leads:
        return None
    return check_secrets(job.plan, job.recipe.noise_multiplier, progress)


def _save(
    job: Job,
    network: nn.Module,
    finished: Finished,
    noise: GradientNoise | None,
    secrets: CheckedSecrets | None,
    amend: Amend,
) -> PrivacyReport:
    witness = witness_of(job.model, network)  # of the network as it was measured, before anything is done to it
    return save_network(
        merged(network, job.request.model),
        job.model.companion,
        job.request.output,
        lambda place, outputs: amend(report_for(job, finished, noise, place, outputs, secrets), finished),
        witness=witness,
        force=job.request.force,
    )


def try_out(job: Job, crew: Crew) -> None:
    """Write the network before it is trained, and load it as others will: what cannot be released is not begun."""
    if crew.leads and not job.request.resume:
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
    job: Job, crew: Crew, more: Mapping[str, Any] = MappingProxyType({})
) -> tuple[RunFolder | None, Saved | None]:
    """The run's folder, and what it goes on from. Processes that do not lead read the state and write nothing.

    ``more`` are facts that must not change between the parts of the run, beside those of every run.
    """
    path, fingerprint = run_folder(job.request.output), {**_fingerprint(job), **more}
    if job.request.resume:
        opened, saved = RunFolder.resume(path, fingerprint)
        crew.wait()  # else the first to go on would change what the others have yet to read
        return (opened if crew.leads else None), saved
    begun = RunFolder.begin(path, fingerprint) if crew.leads else None
    crew.wait()
    return begun, None


def _fingerprint(job: Job) -> dict[str, Any]:
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


def _batches(job: Job, crew: Crew) -> BatchSource:
    if job.plan is not None:
        return WeightedBatches(job.plan.protection.probabilities, shared_source(crew))
    if job.request.method.noised:
        return PoissonBatches(len(job.task), job.recipe.sample_rate, shared_source(crew))
    return Passes(len(job.task), job.request.batch_size, job.request.seed)


def shared_source(crew: Crew) -> NoiseSource:
    """A source of batches that all processes know and nobody else: the first one's key."""
    source = NoiseSource()
    if crew.size > 1:
        key = torch.tensor(list(source.key), dtype=torch.int64)
        source = NoiseSource(key=bytes(crew.same(key).tolist()))
    return source


def prepared(network: nn.Module, job: Job) -> nn.Module:
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


def measured(job: Job, network: nn.Module, device: torch.device, heard: Listener) -> Mapping[str, float]:
    """The network's measures on held-out examples, told to ``heard``; none without such examples."""
    found = {} if job.held_out is None else job.held_out.evaluate(network, device)
    measures = {f"held_out_{name}": value for name, value in found.items()}
    heard(measures)
    return measures
