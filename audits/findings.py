"""The common interface of an audit's parts: each lists the rows it needs scored, then judges the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from privctl.domain.evidence import Evidence
from privctl.domain.leaking import Reason
from privctl.domain.report import Omission
from privctl.domain.verdict import Verdict
from privctl.models.choices import FloatFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.scores.scorer import RowScores

#: The allowed failure probability of all conclusions of an audit, shared equally by its parts (Bonferroni).
ALPHA = 0.05

#: The warning in every audit report.
PRIVATE = (
    "this report and its scores are not for release: they hold exact counts and rates of the audited records, and no "
    "guarantee covers them"
)
_ROUNDED = (
    "all models were run in bfloat16, their weights rounded to it: scores of members and of others are rounded alike, "
    "and an attack may find less than in float32"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results of one part. ``arrays`` go into the scores file, ``parameters`` into the report, by name.

    ``reasons`` say why members, by line, may stand out, and ``sizes`` how many records they have if they are groups;
    these are not part of the report.
    """

    evidence: tuple[Evidence, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    omissions: tuple[Omission, ...] = ()
    warnings: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    reasons: Mapping[int, tuple[Reason, ...]] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)


class AuditPart(Protocol):
    """One part of an audit, such as membership, canaries or extraction."""

    #: The rows whose scores ``judge`` needs.
    rows: Sequence[NDArray[Any]]

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """Judge the scores. The probability that any conclusion is wrong is at most ``alpha``."""


def rounded(dtype: str | None) -> tuple[str, ...]:
    """The warning to give if the forward passes of all models were in ``dtype``."""
    return (_ROUNDED,) if dtype == FloatFormat.BFLOAT16 else ()
