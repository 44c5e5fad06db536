"""The data of a page, a model card or a statement: reports, how they relate, and what can be drawn.

Everything here is plain numbers and text, read by ``privctl.show.gather`` and not checked again.
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
    """One attack's ROC: ``points`` are (false, true positive rate), thinned from ``corners`` of them.

    ``band`` holds (false positive rate, lower, upper) of the true positive rate at fixed thresholds, each with
    probability ``confidence``; empty where none was computed.
    """

    name: str
    points: Points
    corners: int
    band: tuple[tuple[float, float, float], ...] = ()
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposureGroup:
    """Canaries of one side: ``counts[i]`` have an exposure from i to below i + 1 bits; ``ceiling`` is the most bits."""

    name: str
    counts: tuple[int, ...]
    ceiling: float
    included: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCurve:
    """The most that any attack can have under one guarantee: (false positive rate, true positive rate) ``points``."""

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
    """One report. ``key`` is its name within the page, ``name`` what readers call it, ``parents`` the keys it names.

    ``absent`` are parents that are not at hand, ``digests`` what came of checking files against the report, ``drawn``
    False where nothing could be read beside the report, with the reason in ``left_out``.
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
    """What a verdict is about: the report that wrote a model (or stands alone), ancestors, audits and checks."""

    source: ReportSource
    ancestors: tuple[ReportSource, ...] = ()
    audits: tuple[ReportSource, ...] = ()
    checks: tuple[ReportSource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file that a statement names, with every digest of it that is known, by algorithm."""

    name: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """Everything of one page; ``sources`` stand after their parents."""

    title: str
    version: str
    sources: tuple[ReportSource, ...]
    subjects: tuple[JudgedSubject, ...]
    files: tuple[OutputFile, ...] = ()
    report_files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def with_step(self, *steps: str) -> Iterator[ReportSource]:
        """The sources of these steps."""
        return (source for source in self.sources if source.report.step in steps)
