"""The data of a page, a model card or a statement: reports, how they relate, and what can be drawn.

All of it is numbers and text that ``privctl.show.gather`` reads; it is not verified here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from privctl.domain.guarantee import Status
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.strength import Severity
from privctl.domain.verdict import Verdict

#: (x, y) pairs.
Points = tuple[tuple[float, float], ...]

MODEL_ROLE = "model"
ACCOUNT_STEP, AUDIT_STEP, VERIFY_STEP, PLAN_STEP = "account", "audit", "verify", "secrets-plan"
PLANS = (ACCOUNT_STEP, PLAN_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocCurve:
    """One attack's ROC curve: ``points`` are (false, true positive rate), thinned from ``corners`` of them.

    ``band`` holds (false positive rate, lower, upper): bounds on the true positive rate at fixed thresholds, each with
    ``confidence``; empty if none were computed.
    """

    name: str
    points: Points
    corners: int
    band: tuple[tuple[float, float, float], ...] = ()
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposureGroup:
    """A group of canaries: ``counts[i]`` have an exposure from i to below i + 1 bits, of at most ``ceiling`` bits."""

    name: str
    counts: tuple[int, ...]
    ceiling: float
    included: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCurve:
    """The best ROC curve possible under one guarantee: ``points`` are (false positive rate, true positive rate)."""

    label: str
    status: Status
    severity: Severity
    points: Points
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNoiseSummary:
    """One released tensor of ``size`` weights: its root mean square, and whether noise was added to it."""

    name: str
    size: int
    rms: float
    noised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSource:
    """One report. ``key`` is its id within the page, ``name`` the name shown, ``parents`` the keys of its parents.

    ``given``: the user named it. ``absent`` are the names of parents that could not be read, ``digests`` the verdicts
    on files that the report lists, and ``left_out`` the reasons why something could not be drawn.
    """

    key: str
    name: str
    digest: str
    report: PrivacyReport
    given: bool = True
    parents: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    digests: tuple[Verdict, ...] = ()
    roc: tuple[RocCurve, ...] = ()
    exposures: tuple[ExposureGroup, ...] = ()
    bounds: tuple[BoundCurve, ...] = ()
    tensors: tuple[TensorNoiseSummary, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[Artifact, ...]:
        """The weights that this step wrote."""
        return tuple(artifact for artifact in self.report.outputs if artifact.role == MODEL_ROLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSubject:
    """What a verdict is about: a model's own report (or a report without a model), its ancestors, audits and checks."""

    source: ReportSource
    ancestors: tuple[ReportSource, ...] = ()
    audits: tuple[ReportSource, ...] = ()
    checks: tuple[ReportSource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file that a statement names, with its known digests by algorithm."""

    name: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """All data of one page; in ``sources``, parents come before their children."""

    title: str
    version: str
    sources: tuple[ReportSource, ...]
    subjects: tuple[JudgedSubject, ...]
    files: tuple[OutputFile, ...] = ()
    report_files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def with_step(self, *steps: str) -> Iterator[ReportSource]:
        """The sources whose step is among ``steps``."""
        return (source for source in self.sources if source.report.step in steps)
