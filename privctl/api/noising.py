"""``privctl.noise``: add noise to weights. The command calls ``planned_candidates`` and ``make_candidates``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from privctl.api.arguments import DataPaths, FilePath, as_tuple, check_numbers, data_or_none, path_at, path_or_none
from privctl.domain.errors import CommandError
from privctl.domain.progress import Notify, Progress, unseen
from privctl.domain.report import Reports
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from privctl.data.several import DataPath
    from privctl.noise.candidates import Candidate, NoiseRelease
    from privctl.storage.reader import Checkpoint


@contextmanager
def planned_candidates(
    model: Path, options: Mapping[str, Any], notify: Notify
) -> Iterator[tuple[NoiseRelease, tuple[Candidate, ...]]]:
    """A context with the release and the candidates that the options of ``privctl noise`` ask for, and ``model`` open.

    Raises the errors of ``noise``.
    """
    from privctl.accounting.deltas import delta_warning
    from privctl.noise.candidates import plan_candidates
    from privctl.noise.request import release_of

    with open_model_and_base(model, options) as (checkpoint, base):
        release = release_of(checkpoint, base, options)
        candidates = plan_candidates(release, path_or_none(options["output"]))
        training = release.training
        if training and (sentence := delta_warning(release.targets[0].delta, training.dataset_size)):
            notify(sentence)
        yield release, candidates


@contextmanager
def open_model_and_base(model: Path, options: Mapping[str, Any]) -> Iterator[tuple[Checkpoint, Checkpoint | None]]:
    """A context with the open checkpoint at ``model``, and the public one to compare its weights with, or None."""
    from privctl.storage.reader import open_checkpoint

    with open_checkpoint(model) as checkpoint, _opened_base(_base(checkpoint, options)) as base:
        yield checkpoint, base


def make_candidates(
    release: NoiseRelease,
    candidates: tuple[Candidate, ...],
    options: Mapping[str, Any],
    *,
    progress: Progress,
    notify: Notify,
) -> tuple[Reports, dict[str, float]]:
    """Write all candidates, and return their reports and the measures of the model without noise.

    The measures, by quantity, are empty unless ``options["evaluate"]`` names records.
    """
    from privctl.data.places import require_inputs
    from privctl.noise.privatize import privatize, require_places

    require_inputs(options["evaluate"])
    require_places(release, candidates, force=options["force"])
    evaluate, original = _evaluation(release.checkpoint, options["evaluate"], notify)
    with progress("noise", sum(file.size for file in release.checkpoint.files), "bytes") as advance:
        reports = privatize(
            release,
            candidates,
            force=options["force"],
            threads=options["threads"],
            advance=advance,
            evaluate=evaluate,
            notify=notify,
        )
    return Reports(reports), original


def checked_plan(
    release: NoiseRelease, candidates: tuple[Candidate, ...], options: Mapping[str, Any]
) -> tuple[str, ...]:
    """One sentence for each candidate on tensors that its noise would leave unchanged; empty where there are none.

    Raises CommandError for ``--evaluate``, which a dry run has no use for, and InputError for noise below the precision
    of the weights.
    """
    from privctl.noise.privatize import checked_grain

    if options["evaluate"]:
        raise CommandError("--dry-run writes no candidates, so --evaluate has nothing to measure; remove one")
    return checked_grain(release, candidates, threads=options["threads"])


def _base(checkpoint: Checkpoint, options: Mapping[str, Any]) -> str | Path | None:
    """The public model that was given; else, for an adapter, the base that it names, if that is on disk."""
    from privctl.models.guard.adapters import base_at_hand

    given: str | None = options["base"]
    return base_at_hand(checkpoint.root) if checkpoint.is_adapter and not given else given


@contextmanager
def _opened_base(base: FilePath | None) -> Iterator[Checkpoint | None]:
    from privctl.storage.reader import open_checkpoint

    if base is None:
        yield None
    else:
        with open_checkpoint(Path(base)) as checkpoint:
            yield checkpoint


def _evaluation(
    checkpoint: Checkpoint, evaluate: DataPath | None, notify: Notify
) -> tuple[Callable[[Path], dict[str, float]] | None, dict[str, float]]:
    """A function that measures a candidate, and the measures of the input; None and an empty dict without ``evaluate``.

    The measure of a causal language model is its perplexity, that of other models what ``retrain --held-out`` measures.
    """
    if not evaluate:
        return None, {}
    from audits.scores.perplexity import perplexity
    from audits.scores.subject import task_of
    from privctl.data.records import read_records
    from privctl.models.choices import TaskName
    from privctl.models.language import load_model
    from privctl.noise.privatize import PERPLEXITY
    from privctl.train.release.held_out import held_out

    task = TaskName(task_of(checkpoint.root))
    if task is not TaskName.CAUSAL_LM:
        records = held_out(checkpoint.root, task, evaluate)
        notify(f"{task} on {counted(len(records.task), 'record')} of {evaluate}")
        return records.measures, records.measures(checkpoint.root)
    texts = [record.text for record in read_records(evaluate)]

    def measure(weights: Path) -> dict[str, float]:
        # a folder comes with its own configuration and tokenizer; a single file is read with the original's
        folder = None if weights.is_dir() else checkpoint.folder
        return {PERPLEXITY: perplexity(load_model(weights, folder=folder), texts)}

    notify(f"perplexity on {counted(len(texts), 'text')} of {evaluate}")
    return measure, measure(checkpoint.root)


class _NoiseOptions(TypedDict, total=False):
    """The keyword arguments of ``noise``, for type checkers."""

    epsilon: float | Sequence[float]
    delta: float | None
    facts: FilePath | None
    epochs: int | None
    learning_rate: float | None
    clip_norm: float | None
    dataset_size: int | None
    batch_size: int | None
    steps: int | None
    optimizer: str | None
    momentum: float | None
    beta1: float | None
    beta2: float | None
    weight_decay: float | None
    smoothness: float | None
    strong_convexity: float | None
    noise_stddev: float | Sequence[float]
    calibration: str | None
    formula: str | None
    regime: str | None
    adjacency: str | None
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    base: FilePath | None
    evaluate: DataPaths | None
    threads: int
    seed: int | None
    output: FilePath | None
    force: bool
    progress: Progress
    notify: Notify


@overload
def noise(model: FilePath, *, dry_run: Literal[True], **options: Unpack[_NoiseOptions]) -> tuple[Candidate, ...]: ...


@overload
def noise(model: FilePath, *, dry_run: Literal[False] = False, **options: Unpack[_NoiseOptions]) -> Reports: ...


def noise(
    model: FilePath,
    *,
    epsilon: float | Sequence[float] = (),
    delta: float | None = None,
    facts: FilePath | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    clip_norm: float | None = None,
    dataset_size: int | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    optimizer: str | None = None,
    momentum: float | None = None,
    beta1: float | None = None,
    beta2: float | None = None,
    weight_decay: float | None = None,
    smoothness: float | None = None,
    strong_convexity: float | None = None,
    noise_stddev: float | Sequence[float] = (),
    calibration: str | None = None,
    formula: str | None = None,
    regime: str | None = None,
    adjacency: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    base: FilePath | None = None,
    evaluate: DataPaths | None = None,
    threads: int = 2,
    seed: int | None = None,
    output: FilePath | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = unseen,
    notify: Notify = lambda _: None,
) -> Reports | tuple[Candidate, ...]:
    """Add Gaussian noise once to the weights of ``model``, a safetensors file or a Hugging Face directory.

    ``epsilon`` is one target or several, with a candidate for each; 1 by default. The facts of the training come from
    the arguments, from the JSON file ``facts``, or from the report beside a model that privctl trained. ``clip_norm``
    is an L2 norm, and ``batch_size`` is in examples. ``noise_stddev``, in the units of the weights, adds noise of that
    size without any facts, and guarantees nothing. ``seed`` is for tests and voids every guarantee.

    Returns the reports of the candidates, each written beside its model. A report may hold both the published claim and
    the guarantees that follow from the noise, so read ``status`` before ``epsilon``.

    With ``dry_run`` nothing is written, and the planned candidates are returned: ``stddev`` is the standard deviation
    of the noise, ``guarantees`` are those that would hold, and ``path`` is where the model would be written.

    Raises CommandError for missing or contradictory facts and for existing files, InputError for a model that noise
    cannot be added to.
    """
    options: dict[str, Any] = {**locals()}
    for name in ("model", "progress", "notify", "dry_run"):
        del options[name]
    options |= {name: as_tuple(options[name]) for name in ("epsilon", "noise_stddev", "include", "exclude")}
    options |= {"facts": None if facts is None else str(facts), "evaluate": data_or_none(evaluate)}
    check_numbers("noise", options)
    with planned_candidates(path_at(model, "model"), options, notify) as (release, candidates):
        if dry_run:
            for sentence in filter(None, checked_plan(release, candidates, options)):
                notify(sentence)
            return candidates
        return make_candidates(release, candidates, options, progress=progress, notify=notify)[0]
