"""The gate's judgement as workflow commands of GitHub Actions: annotations at the files and lines of its findings.

Findings that say the same of several subjects are one annotation, because GitHub shows ten of a step at most.

The runner requires that %, CR and LF are written as %25, %0D and %0A, and in a property also : and , as %3A and %2C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.gate import Finding, GateJudgement, GateOutcome
from privctl.show.alike import grouped, in_a_sentence, told
from privctl.show.plain import plain
from privctl.show.text.gate import summary

_LEVELS = {GateOutcome.FAIL: "error", GateOutcome.INCONCLUSIVE: "warning"}


def render(judgement: GateJudgement) -> str:
    """One line per group of findings that counts, then those waived as notices, then the summary."""
    return "\n".join(_lines(judgement)) + "\n"


def _lines(judgement: GateJudgement) -> Iterator[str]:
    for outcome, level in _LEVELS.items():
        yield from (_command(level, judgement, alike, alike[0].fix) for alike in grouped(judgement.of(outcome)))
    for alike in grouped(judgement.waived):
        yield _command("notice", judgement, alike, f"waived by {alike[0].waiver}")
    passed = judgement.outcome is GateOutcome.PASS
    yield summary(judgement) if passed else f"{summary(judgement)}. {_data(in_a_sentence(judgement))}"


def _command(level: str, judgement: GateJudgement, alike: Sequence[Finding], more: str) -> str:
    each = alike[0]
    message = told(judgement, alike) + (f" ({more})" if more else "")
    where = f"file={_property(each.place.path)},line={each.place.line},title={_property(f'privctl {each.rule}')}"
    return f"::{level} {where}::{_data(message)}"


def _data(text: str) -> str:
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
