"""The candidates of a release: their noise, the guarantees that follow, and where they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from privctl.data.several import DataPath
from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee
from privctl.domain.mechanism import Calibration, ClippedTraining
from privctl.domain.report import Omission
from privctl.noise.dp_weights import Premises, PrivacyTarget, guarantees, noise_stddev, published_stddev
from privctl.noise.placement import Companion, output_path, report_path
from privctl.noise.selection import Selection
from privctl.noise.shortfall import NOTHING_CLAIMED, Shortfall, shortfall
from privctl.reports.files import FoundReport
from privctl.storage.digest import DigestedFile
from privctl.storage.reader import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRelease:
    """Everything that a release is made from, before any noise is drawn.

    ``model_report`` is the report of the input model; ``base_reports`` are those of the base model, whose tensors are
    taken to be public or to which an adapter belongs.
    """

    checkpoint: Checkpoint
    training: ClippedTraining | None
    selection: Selection
    premises: Premises
    targets: tuple[PrivacyTarget, ...]
    companions: tuple[Companion, ...]
    #: Standard deviations given by the user, without targets and training facts.
    stddevs: tuple[float, ...] = ()
    model_report: FoundReport | None = None
    base_reports: tuple[FoundReport, ...] = ()
    inputs: Mapping[str, DataPath] = field(default_factory=dict)
    #: Digests, taken beforehand, of those ``inputs`` that are read during the run.
    before: Mapping[str, tuple[DigestedFile, ...]] = field(default_factory=dict)
    parameters: Mapping[str, object] = field(default_factory=dict)
    #: What the training collected from the private data and is released: vocabulary, labels.
    collected: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One noise level and the guarantees that follow from it; ``path`` is where its model is written.

    ``target`` is None if the standard deviation was given. ``published_stddev`` is what the published formula gives for
    the target, if another calibration was chosen. ``shortfall`` says why no useful guarantee follows; None if one does.
    """

    target: PrivacyTarget | None
    stddev: float
    path: Path
    guarantees: tuple[Guarantee, ...]
    omissions: tuple[Omission, ...]
    shortfall: Shortfall | None = None
    published_stddev: float | None = None

    @property
    def report_path(self) -> Path:
        """The path of the report, beside the model and named after it."""
        return report_path(self.path)


def noise_premises(seed: int | None) -> Assumption:
    """The assumption about the noise source: enforced, or violated if the user chose a seed."""
    return Assumption(
        name="secret-noise",
        statement="the noise comes from a cryptographic generator whose key nobody knows",
        state=AssumptionState.ENFORCED if seed is None else AssumptionState.VIOLATED,
    )


def plan_candidates(release: NoiseRelease, output: Path | None) -> tuple[Candidate, ...]:
    """The candidates in the order of their targets; nothing is written.

    Raises CommandError if two targets need the same noise or a calibration does not apply.
    """
    if release.training is None:
        return _with_given_stddevs(release, output)
    training, dimension, count = release.training, release.selection.dimension, len(release.targets)
    stddevs = [noise_stddev(training, target, dimension, count) for target in release.targets]
    if min(stddevs) <= 0:
        raise CommandError(
            "the noise that follows from these facts is too small for floating point: check --learning-rate and "
            "--clip-norm, whose product says how far a record can move the weights"
        )
    if len(set(stddevs)) < len(stddevs):
        raise CommandError("two of the epsilons ask for the same noise; give each --epsilon once")
    marks = [f"-eps{target.epsilon:g}" if len(stddevs) > 1 else "" for target in release.targets]
    if len(set(marks)) < len(marks):
        raise CommandError("two of the epsilons are too close to get files of their own; choose others")
    return tuple(
        _candidate(release, training, target, stddev, stddevs, output, mark)
        for target, stddev, mark in zip(release.targets, stddevs, marks, strict=True)
    )


def _with_given_stddevs(release: NoiseRelease, output: Path | None) -> tuple[Candidate, ...]:
    """A candidate for each given standard deviation, without any guarantee."""
    marks = [f"-stddev{stddev:g}" if len(release.stddevs) > 1 else "" for stddev in release.stddevs]
    if len(set(marks)) < len(marks):
        raise CommandError("two standard deviations are the same or too close to get files of their own; change one")
    return tuple(
        Candidate(
            target=None,
            stddev=stddev,
            path=output_path(release.checkpoint, output, mark, private=False),
            guarantees=(),
            omissions=(),
            shortfall=NOTHING_CLAIMED,
        )
        for stddev, mark in zip(release.stddevs, marks, strict=True)
    )


def _candidate(
    release: NoiseRelease,
    training: ClippedTraining,
    target: PrivacyTarget,
    stddev: float,
    stddevs: Sequence[float],
    output: Path | None,
    mark: str,
) -> Candidate:
    rows, omitted = guarantees(
        training,
        target,
        stddev,
        release.selection.dimension,
        release.premises,
        released_stddevs=stddevs,
    )
    lacking = shortfall(training, target, rows)
    path = output_path(release.checkpoint, output, mark, private=lacking is None)
    calibrated = target.calibration is not Calibration.DP_WEIGHTS
    return Candidate(
        target=target,
        stddev=stddev,
        path=path,
        guarantees=rows,
        omissions=omitted,
        shortfall=lacking,
        published_stddev=published_stddev(training, target.epsilon, target.delta, target.formula)
        if calibrated
        else None,
    )
