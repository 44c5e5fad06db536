"""The reports of a model as Markdown, for a pull request, a CI step summary or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from privctl.domain.shown import counted
from privctl.show.page_data import PageData, ReportSource
from privctl.show.plain import clean
from privctl.show.summary import MEANING, Summary, amount, protects, summarize, verdicts_of, word_of
from privctl.show.text.style import bound, short

#: Characters that are markup in Markdown or in HTML within it.
_SPECIAL = re.compile(r"[\\`*_\[\]#|~$]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
#: Text that Markdown links by itself.
_LINK = re.compile(r"(?i)\b(https?|ftp|mailto|xmpp):|\bwww\.")
#: What starts a list at the beginning of a line.
_LIST = re.compile(r"^([-+]|\d+[.)])(?=\s|$)")
_MOST = 60


def plain(text: str) -> str:
    """``text`` escaped for Markdown, on one line: no markup and no links."""
    line = " ".join(clean(text).split())
    escaped = "".join(_ENTITIES.get(letter, letter) for letter in _SPECIAL.sub(r"\\\g<0>", line))
    escaped = _LINK.sub(lambda match: f"{match[0][:-1]}&#{ord(match[0][-1])};", escaped)
    return _LIST.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", escaped)


def rows(headings: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; cells are escaped here, and rows after 60 only counted."""
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    yield from (f"| {' | '.join(plain(cell) or ' ' for cell in row)} |" for row in body[:_MOST])
    if len(body) > _MOST:
        more = counted(len(body) - _MOST, "more row is", "more rows are")
        yield f"| … {more} in the reports |{' |' * (len(headings) - 1)}"


def markdown(data: PageData) -> str:
    """The reports as Markdown: verdicts, then the chain of steps, guarantees, findings and limits."""
    lines = [f"# {plain(data.title)}", ""]
    for subject in data.subjects:
        lines += [*verdict_lines(summarize(subject), level=2), ""]
    lines += ["## From model to model", "", *_chain(data), ""]
    for source in data.sources:
        lines += _guarantees(source)
    parts = [
        (v.subject, word_of(v, source.report.step), v.reason, source.name) for source, v in verdicts_of(data.sources)
    ]
    if parts:
        lines += ["## Verdicts", "", *rows(("claim or question", "outcome", "why", "report"), parts), ""]
    limits = dict.fromkeys(line for source in data.sources for line in source.report.warnings)
    if limits:
        lines += ["## What this does not show", "", *(f"- {plain(line)}" for line in list(limits)[:_MOST]), ""]
    return "\n".join(lines)


def verdict_lines(summary: Summary, *, level: int) -> Iterator[str]:
    """The lines of one model's verdict, under a heading of ``level``."""
    source, lead = summary.subject.source, summary.lead
    yield f"{'#' * level} {plain(source.name)}"
    yield ""
    if lead is None:
        yield f"**{plain(summary.headline)}.**"
    else:
        stated = f"{plain(amount(lead))}, " if summary.headline != amount(lead) else ""
        yield f"**{plain(summary.headline)}** ({stated}{lead.status}): {plain(lead.name)}; {plain(protects(lead))}."
    yield ""
    for name, text in (
        ("Guarantee", summary.guarantee),
        ("Attacks", summary.attacked),
        *((("Leak", summary.leaked),) if summary.leaked else ()),
        ("Verification", summary.verified),
    ):
        yield f"- {name}: {plain(text)}"
    yield from (f"- Not checked: {plain(line)}" for line in summary.unchecked)


def _chain(data: PageData) -> Iterator[str]:
    names = {source.key: source.name for source in data.sources}
    body = [
        (source.report.step, source.name, ", ".join(names[key] for key in source.parents) or "–", source.report.created,
         short(source.digest))
        for source in data.sources
    ]  # fmt: skip
    yield from rows(("step", "report", "builds on", "made", "digest"), body)


def _guarantees(source: ReportSource) -> Iterator[str]:
    guarantees = source.report.guarantees
    if not guarantees:
        return
    yield f"## Guarantees: {plain(source.name)}"
    yield ""
    body = [
        (g.name, amount(g), str(g.status), protects(g), "; ".join(f"{a.state}: {a.statement}" for a in g.assumptions))
        for g in guarantees
    ]
    yield from rows(("name", "amount", "status", "protects", "rests on"), body)
    yield ""
    statuses = {g.status for g in guarantees}
    yield from (f"- {status}: {meaning}" for status, meaning in MEANING.items() if status in statuses)
    follows = [g for g in guarantees if g.follows is not None and g.follows != g.epsilon]
    yield from (f"- {plain(g.name)}: the same noise gives epsilon {bound(g.follows, 4)}" for g in follows[:_MOST])
    yield ""
