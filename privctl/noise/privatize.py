"""Privatizing a finished checkpoint: writing the noisy candidates and their reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from blake3 import blake3

from privctl.data.recorded import recorded_files, require_same
from privctl.data.several import paths_of
from privctl.domain.errors import InputError
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.mechanism import Calibration, WeightNoise
from privctl.domain.progress import Advance, Notify, silent
from privctl.domain.report import Artifact, Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.models.guard.adapters import stated_base
from privctl.noise.candidates import Candidate, NoiseRelease
from privctl.noise.grain import LEAST_CHANGED, MOST_KEPT, Grain, GrainOfTensors, grain_of, grains_of
from privctl.noise.placement import CandidateOutput, omissions_of
from privctl.noise.selection import ROUNDING
from privctl.noise.weight_noise import WeightNoiser
from privctl.randomness import NoiseSource
from privctl.randomness.gridded import spacing
from privctl.reports.files import (
    POINTER,
    digested_artifact,
    file_artifact,
    now,
    relative,
    require_replaceable,
    staged_report,
    versions,
)
from privctl.storage.atomic import PendingFile, PendingFolder, require_absent
from privctl.storage.commit import commit_together
from privctl.storage.digest import tag
from privctl.storage.folder import companions_of
from privctl.storage.header import serialize_header
from privctl.storage.reader import Checkpoint, SafetensorsFile
from privctl.storage.stream import Rewritten, Transform, WrittenFile, rewrite

PERPLEXITY = "perplexity"
#: The beginning of the warning about tensors whose spacing exceeds the noise, and how many of them it names.
COARSE = "most weights are released as training left them"
_NAMED = 5

_NOT_COVERED = (
    "the guarantees speak of the weights; configuration and tokenizer are copied as they are, so check them for data",
    "this report is not covered: it holds digests of the weights without noise; keep it and the reports it names to "
    "yourself if the model goes to someone who must not learn of the data",
    "the noise is covered down to the bits that are written; how floats rounded within the training is not, since the "
    "sensitivity is of exact steps",
    "another run on the same weights draws new noise; the two releases compose, which no single report counts",
)


#: Evaluates the weights at a path (a file or folder, perhaps a temporary one); returns measurements by name.
Evaluate = Callable[[Path], Mapping[str, float]]


def checked_grain(release: NoiseRelease, candidates: Sequence[Candidate], *, threads: int = 2) -> tuple[str, ...]:
    """``check_grain`` and ``coarse_warnings``, with noise drawn only for these checks, in ``threads`` threads."""
    stddevs = sorted(c.stddev for c in candidates)
    noiser = WeightNoiser(NoiseSource(release.seed), stddevs, release.selection.streams)
    check_grain(release, candidates, noiser, threads)
    return coarse_warnings(grains_of(release.checkpoint, noiser, release.selection.streams.keys(), threads), candidates)


def check_grain(release: NoiseRelease, candidates: Sequence[Candidate], noiser: WeightNoiser, threads: int = 2) -> None:
    """Raise InputError if the smallest noise would leave too many weights unchanged once they are stored.

    ``noiser`` is the one that makes the release, so the check uses the values to be released.
    """
    least = min(candidates, key=lambda c: c.stddev)
    grain = grain_of(release.checkpoint, noiser, release.selection.streams.keys(), threads)
    changed = grain.changed_share(least.stddev)
    if changed >= LEAST_CHANGED:
        return
    dtypes = " and ".join(grain.dtypes)
    raise InputError(
        f"{release.checkpoint.root}: the noise{_for_epsilon(least)} has standard deviation "
        f"{least.stddev:.3g}, but {dtypes} numbers of the size of these weights lie {grain.median:.3g} apart (median), "
        f"so storing them would undo the noise in {100 * (1 - changed):.4g} % of the weights, and changes of training "
        f"would show there; expected a standard deviation of at least {grain.least_stddev:.2g}: "
        + _MORE_NOISE[least.target is None]
    )


def coarse_warnings(tensors: Mapping[str, Grain], candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """For each candidate, a sentence about ``tensors`` that the noise leaves mostly unchanged; "" if there are none."""
    return tuple(_coarse_warning(tensors, candidate) for candidate in candidates)


#: How to get more noise: with a target, and with a given standard deviation.
_MORE_NOISE = (
    "lower epsilon, and check the learning rate, clip norm and batch size among the facts",
    "give a larger --noise-stddev",
)


def _for_epsilon(candidate: Candidate) -> str:
    return "" if candidate.target is None else f" for epsilon {candidate.target.epsilon:g}"


def _coarse_warning(tensors: Mapping[str, Grain], candidate: Candidate) -> str:
    names = [name for name, grain in tensors.items() if grain.changed_share(candidate.stddev) < MOST_KEPT]
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"{COARSE} in {counted(len(names), 'tensor')}, where noise of standard deviation {candidate.stddev:.3g} is "
        f"smaller than the spacing of the stored numbers: {', '.join(names[:_NAMED])}{more}"
    )


def require_places(release: NoiseRelease, candidates: Sequence[Candidate], *, force: bool) -> None:
    """Raise CommandError if a candidate or its report cannot be written to its place; fast, so done before any work."""
    for candidate in candidates:
        if release.checkpoint.is_directory:
            require_replaceable(
                candidate.path,
                candidate.report_path,
                force,
                inputs=[path for given in release.inputs.values() for path in paths_of(given)],
            )
        else:
            require_absent(candidate.path, force)
        require_absent(candidate.report_path, force)


def privatize(
    release: NoiseRelease,
    candidates: Sequence[Candidate],
    *,
    force: bool = False,
    threads: int = 2,
    advance: Advance = silent,
    evaluate: Evaluate | None = None,
    notify: Notify = lambda _: None,
) -> tuple[PrivacyReport, ...]:
    """Write every candidate and its report; returns the reports in the candidates' order.

    All of them are committed together. With ``force`` they replace files and folders that privctl wrote.

    Raises InputError if the input's digest differs from the one in its report, if the noise is too small for the
    weights (``check_grain``), or if the facts file or evaluation data changed since ``release`` was made. Raises
    CommandError as ``require_places`` does.
    """
    require_places(release, candidates, force=force)
    quietest_first = sorted(candidates, key=lambda c: c.stddev)
    source = NoiseSource(release.seed)
    noiser = WeightNoiser(source, [c.stddev for c in quietest_first], release.selection.streams)
    if fault := noiser.compile(release.checkpoint):
        notify(fault)
    check_grain(release, candidates, noiser, threads)
    noised = GrainOfTensors(noiser)
    with ExitStack() as stack:
        places = [
            CandidateOutput(stack, release.checkpoint, candidate_made.path, release.companions, replaces=force)
            for candidate_made in quietest_first
        ]
        streamed = [(file, _stream(stack, file, places, noised, threads, advance)) for file in release.checkpoint.files]
        _check_input(release, streamed)
        sentences = coarse_warnings(noised.of(release.checkpoint), candidates)
        coarse = dict(zip((c.path for c in candidates), sentences, strict=True))
        reports: dict[Path, PrivacyReport] = {}
        outputs: list[PendingFile | PendingFolder] = []
        for i, (candidate, place) in enumerate(zip(quietest_first, places, strict=True)):
            place.close_files()
            measured: Mapping[str, float] = {} if evaluate is None else evaluate(place.weights)
            written_files = [(file.path.name, done.outputs[i]) for file, done in streamed]
            stddevs = [c.stddev for c in quietest_first]
            report = _report(
                release, candidate, source, streamed, written_files, measured, stddevs, coarse[candidate.path]
            )
            reports[candidate.path] = report
            outputs += [stack.enter_context(staged_report(candidate.report_path, report)), place.pending]
        require_places(release, candidates, force=force)  # again, as something may have been created in the meantime
        for role, files in release.before.items():
            require_same(release.inputs[role], files)
        commit_together(outputs, replace=force)
    return tuple(reports[candidate.path] for candidate in candidates)


def _stream(
    stack: ExitStack,
    file: SafetensorsFile,
    places: Sequence[CandidateOutput],
    transform: Transform,
    threads: int,
    advance: Advance,
) -> Rewritten:
    headers = []
    for place in places:
        metadata = {"format": file.metadata.get("format", "pt"), POINTER: place.pointer}
        headers.append(serialize_header(file.tensors, metadata))
    size = file.size - file.header.data_start
    pending = [
        place.open_file(stack, file.path.name, len(header) + size)
        for place, header in zip(places, headers, strict=True)
    ]
    return rewrite(file, pending, headers, transform, threads=threads, advance=advance)


def _check_input(release: NoiseRelease, streamed: Sequence[tuple[SafetensorsFile, Rewritten]]) -> None:
    """Raise InputError unless the input's digests are in the report that the facts come from."""
    if release.model_report is None:
        return
    reported = {artifact.digest for artifact in release.model_report.report.outputs}
    for file, done in streamed:
        if done.input_digest not in reported:
            raise InputError(
                f"{file.path} is not the file that its report {release.model_report.path} describes (the digest "
                "differs); give the facts by flags, or restore the file"
            )


def _report(
    release: NoiseRelease,
    candidate: Candidate,
    source: NoiseSource,
    streamed: Sequence[tuple[SafetensorsFile, Rewritten]],
    written_files: Sequence[tuple[str, WrittenFile]],
    measured: Mapping[str, float],
    stddevs: Sequence[float],
    coarse: str,
) -> PrivacyReport:
    target, report_path = candidate.target, candidate.report_path
    models = (
        Artifact(role="model", path=relative(file.path, report_path), digest=done.input_digest, bytes=file.size)
        for file, done in streamed
    )
    other_inputs = (
        digested_artifact(role, file, report_path)
        for role, path in release.inputs.items()
        for file in release.before.get(role) or recorded_files(path)
    )
    companions = (file_artifact("companion", path, report_path) for path in companions_of(release.checkpoint))
    calibration = Calibration.GIVEN if target is None else target.calibration
    return PrivacyReport(
        step="noise",
        created=now(),
        versions=versions(("numpy", "scipy", "cryptography", "blake3", *source.compilers)),
        inputs=(*models, *other_inputs, *companions),
        outputs=tuple(_outputs(release, candidate, written_files)),
        parameters={
            **release.parameters,
            "collected_from_data": list(release.collected),
            **({} if target is None else {"epsilon": target.epsilon, "delta": target.delta}),
            "calibration": calibration.value,
            "tensors_noised": len(release.selection.streams),
            "tensors_untouched": dict(release.selection.untouched),
            "tensors_tied": [list(group) for group in release.selection.tied],
        },
        mechanism=WeightNoise(
            training=release.training,
            noise_stddev=candidate.stddev,
            dimension=release.selection.dimension,
            calibration=calibration,
            formula=target.formula if target and calibration is Calibration.DP_WEIGHTS else None,
            regime=target.regime if target and calibration is Calibration.GAUSSIAN else None,
            candidate_stddevs=tuple(stddevs),
            noise_source=source.description,
            grid=spacing(candidate.stddev),
        ),
        guarantees=candidate.guarantees,
        evidence=tuple(_measured(quantity, value) for quantity, value in measured.items()),
        omissions=(
            *candidate.omissions,
            *omissions_of(release.checkpoint, release.companions),
            *_dropped_metadata(release.checkpoint),
        ),
        warnings=(*_shortfall_warning(candidate), *_warnings(release), *filter(None, [coarse])),
        parents=tuple(
            report.parent_of(report_path)
            for report in (release.model_report, *release.base_reports)
            if report is not None
        ),
    )


def _outputs(
    release: NoiseRelease, candidate: Candidate, written_files: Sequence[tuple[str, WrittenFile]]
) -> Iterator[Artifact]:
    folder = release.checkpoint.is_directory
    for name, file in written_files:
        path = f"{candidate.path.name}/{name}" if folder else candidate.path.name
        yield Artifact(role="model", path=path, digest=file.digest, bytes=file.size, tensors=file.tensors)
    for companion in release.companions:
        digest = tag(blake3(companion.content))
        yield Artifact(
            role="companion",
            path=f"{candidate.path.name}/{companion.name}",
            digest=digest,
            bytes=len(companion.content),
        )


def _dropped_metadata(checkpoint: Checkpoint) -> Iterator[Omission]:
    """Omissions for header entries that were not copied, as trainers write names and sizes of data sets there."""
    for key in sorted({key for file in checkpoint.files for key in file.metadata} - {"format", POINTER}):
        yield Omission(what=f"copy of the header's entry {key!r}", reason="not known to be free of traces of the data")


def _measured(quantity: str, value: float) -> Evidence:
    finite = math.isfinite(value)
    of_tokens = "mean loss of each token of the evaluation data, end-of-text tokens among them"
    return Evidence(
        method=of_tokens if quantity == PERPLEXITY else "measured on the evaluation data, as retrain --held-out does",
        quantity=quantity,
        estimate=value if finite else None,
        bound=Bound.NONE,
        reason="" if finite else "too large for a float: the noise destroyed the model",
    )


def measures_of(report: PrivacyReport) -> dict[str, float]:
    """What was measured on a candidate, by name, the most informative first; infinite if too large for a float."""
    return {e.quantity: math.inf if e.estimate is None else e.estimate for e in report.evidence}


def perplexity_of(report: PrivacyReport) -> float | None:
    """The perplexity that a report records; infinite if it was too large for a float, None if not measured."""
    return measures_of(report).get(PERPLEXITY)


def _shortfall_warning(candidate: Candidate) -> Iterator[str]:
    if candidate.shortfall is not None:
        yield f"{candidate.shortfall.reason}. {candidate.shortfall.advice}"


def _warnings(release: NoiseRelease) -> Iterator[str]:
    if release.training is not None:
        yield from _NOT_COVERED
    if release.checkpoint.is_adapter:
        base = stated_base(release.checkpoint.root) or "a model that it does not name"
        known = any(role.startswith("base-") for role in release.inputs)
        where = "among the inputs" if known else "not known here"
        yield (
            f"the weights are an adapter of {base}, whose digests are {where}; "
            "the guarantees are for the adapter, and its base must have been made without the data"
        )
    if release.seed is not None:
        yield "the noise was drawn from a seed given by the user: anyone who knows it can remove the noise"
    yield from (f"assumed, and often false: {a.statement}" for a in release.premises.assumptions if a.name == ROUNDING)
    if (count := max(len(release.targets), len(release.stddevs))) > 1:
        yield (
            f"{count} candidates were made in one run, nested (each the next less noisy one plus fresh "
            "noise): anyone who sees several of them learns as much as from the least noisy one"
        )
    if release.model_report is not None and release.model_report.report.step == "noise":
        yield "the input had noise already; the guarantees count only the noise added here"
