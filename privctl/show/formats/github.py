"""The gate's judgement as workflow commands of GitHub Actions: an annotation for every finding, at its file and line.

The runner requires that %, CR and LF are written as %25, %0D and %0A, and in a property also : and , as %3A and %2C.
"""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.gate import Finding, GateJudgement, GateOutcome
from privctl.show.plain import plain
from privctl.show.text.gate import summary

_LEVELS = {GateOutcome.FAIL: "error", GateOutcome.INCONCLUSIVE: "warning"}


def render(judgement: GateJudgement) -> str:
    """One line per finding that counts, then waived findings as notices, then the summary."""
    return "\n".join(_lines(judgement)) + "\n"


def _lines(judgement: GateJudgement) -> Iterator[str]:
    for outcome, level in _LEVELS.items():
        yield from (_command(level, judgement, finding, finding.fix) for finding in judgement.of(outcome))
    yield from (_command("notice", judgement, finding, f"waived by {finding.waiver}") for finding in judgement.waived)
    yield summary(judgement)


def _command(level: str, judgement: GateJudgement, finding: Finding, more: str) -> str:
    message = f"{judgement.subject(finding)}: {finding.message}" + (f" ({more})" if more else "")
    where = (
        f"file={_property(finding.place.path)},line={finding.place.line},title={_property(f'privctl {finding.rule}')}"
    )
    return f"::{level} {where}::{_data(message)}"


def _data(text: str) -> str:
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
