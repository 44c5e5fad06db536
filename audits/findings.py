"""What the parts of an audit have in common: each asks for rows to be scored and then judges the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from audits.scores.scorer import RowScores
from privctl.domain.evidence import Evidence
from privctl.domain.report import Omission
from privctl.domain.verdict import Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one part found. ``arrays`` go into the scores file, ``parameters`` into the report, by name."""

    evidence: tuple[Evidence, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    omissions: tuple[Omission, ...] = ()
    warnings: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class AuditPart(Protocol):
    """One question that an audit asks of a model: membership, canaries, extraction."""

    #: Every row whose scores ``judge`` will read.
    rows: Sequence[NDArray[Any]]

    def judge(self, book: RowScores, alpha: float) -> Findings:
        """What the scores show; everything concluded is wrong together with probability at most ``alpha``."""
