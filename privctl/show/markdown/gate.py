"""The gate's judgement as Markdown, for a pull request comment or a CI step summary."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from privctl.domain.gate import Finding, GateJudgement, GateOutcome
from privctl.show.alike import grouped, in_a_sentence, told
from privctl.show.plain import plain
from privctl.show.text.gate import summary

_ACTIVE = re.compile(r"([\\`*_{}\[\]()|!~$])")
#: Mentions, issue references and addresses, which GitHub links by itself; a word joiner prevents that.
_LINKED = re.compile(r"(@|#(?=\d)|GH-(?=\d)|:(?=//)|www(?=\.))", re.IGNORECASE)
_TITLES = {GateOutcome.FAIL: "Failed", GateOutcome.INCONCLUSIVE: "Inconclusive"}


def render(judgement: GateJudgement) -> str:
    """The judgement as Markdown, worst findings first; those that passed are in a collapsed section."""
    return "\n".join(_lines(judgement)) + "\n"


def safe(text: str) -> str:
    """``text`` escaped for Markdown, also within a table: no markup, mentions or links."""
    seen = _ACTIVE.sub(r"\\\1", plain(text))
    return _LINKED.sub("\\1\u2060", html.escape(seen, quote=False))


def _lines(judgement: GateJudgement) -> Iterator[str]:
    yield from (f"## privctl {safe(summary(judgement))}", "", safe(in_a_sentence(judgement)))
    for outcome, title in _TITLES.items():
        findings = judgement.of(outcome)
        if findings:
            yield from ("", f"### {title}", "", "| rule | subject | what | to fix | where |", "|---|---|---|---|---|")
            yield from (_row(judgement, alike) for alike in grouped(findings))
    if judgement.waived:
        yield from ("", "### Waived", "", "| rule | subject | what | waiver |", "|---|---|---|---|")
        for each in judgement.waived:
            waiver = f"{safe(each.waiver)}: {safe(each.waived_because)}"
            yield f"| {each.rule} | {safe(judgement.subject(each))} | {safe(each.message)} | {waiver} |"
    passed = judgement.of(GateOutcome.PASS)
    if passed:
        yield from (
            "",
            f"<details><summary>Passed ({len(passed)})</summary>",
            "",
            *_list(judgement, passed),
            "",
            "</details>",
        )
    if judgement.notes:
        yield from ("", *(f"- {safe(note)}" for note in judgement.notes))
    if judgement.settings:
        yield from ("", "Policy:", "")
        yield from (f"- `{s.key}` = {safe(s.value)} ({safe(s.source)})" for s in judgement.settings)


def _row(judgement: GateJudgement, alike: Sequence[Finding]) -> str:
    each = alike[0]
    place = f"{each.place.path}:{each.place.line}"
    what = (judgement.subject(each), each.message)
    if len(alike) > 1:
        what = (f"{len(alike)} findings", told(judgement, alike))
    cells = (each.rule, *what, each.fix, place)
    return f"| {' | '.join(map(safe, cells))} |"


def _list(judgement: GateJudgement, findings: Sequence[Finding]) -> Iterator[str]:
    return (f"- {each.rule}: {safe(judgement.subject(each))}: {safe(each.message)}" for each in findings)
