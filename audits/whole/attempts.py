"""Parts of an audit that may not be possible with the model at hand, while the others continue without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from audits.findings import AuditPart, Findings
from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import Omission

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.scores.scorer import RowScores

#: Errors that occur in every process of an audit alike, so that all leave out the same part.
_OF_MODEL_OR_DATA = (CommandError, InputError)


class SkippedPart:
    """A part that is not possible with the model or its data; its only finding is an omission with the reason."""

    rows: Sequence[NDArray[Any]] = ()

    def __init__(self, what: str, why: CommandError | InputError) -> None:
        self.why = why
        self._omission = Omission(what=what, reason=str(why))

    @property
    def sentence(self) -> str:
        """What was left out, and why."""
        return f"{self._omission.what} was not measured: {self._omission.reason}"

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """Findings with only the omission."""
        return Findings(omissions=(self._omission,))


class _Attempt:
    """A part whose judgement may fail."""

    def __init__(self, what: str, part: AuditPart) -> None:
        self._what, self._part = what, part
        self.rows = part.rows

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """The part's findings, or the omission if it fails."""
        try:
            return self._part.judge(row_scores, alpha)
        except _OF_MODEL_OR_DATA as error:
            return SkippedPart(self._what, error).judge(row_scores, alpha)


def attempted(what: str, make: Callable[[], AuditPart], *, alone: bool) -> AuditPart:
    """The part ``what`` made by ``make``, or ``SkippedPart`` if that fails; if ``alone``, errors are raised."""
    if alone:
        return make()
    try:
        return _Attempt(what, make())
    except _OF_MODEL_OR_DATA as error:
        return SkippedPart(what, error)
