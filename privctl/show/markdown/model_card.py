"""A privacy section and a block of metadata in the README.md of a Hugging Face model.

Both are between marks. A later run replaces what is between the marks and changes no other byte, except for the tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from privctl.domain.errors import InputError
from privctl.domain.guarantee import Notion
from privctl.domain.protected import meaning_of_example
from privctl.domain.strength import OF_OTHER_LOOPS, Severity, severity
from privctl.domain.verdict import Outcome
from privctl.show.markdown.report import plain, rows, verdict_lines
from privctl.show.page_data import PLANS, PageData
from privctl.show.plain import json_text
from privctl.show.summary import DO_NOT_RELEASE, Summary, amount, protects, summarize

BEGIN, END = "<!-- privctl:begin -->", "<!-- privctl:end -->"
#: Marks within the metadata, which is YAML.
META_BEGIN, META_END = "# privctl:begin", "# privctl:end"
KEY = "differential_privacy"
_FENCE = "---"
_TAG = "differential-privacy"


def insert_summary(existing: bytes | None, data: PageData, name: str) -> bytes:
    """Insert metadata and section into the README ``existing``; None or empty gives a new one. ``name`` is for errors.

    Raises InputError if the file is not UTF-8, if its marks or metadata were changed, or if no report is of a model.
    """
    try:
        text = (existing or b"").decode()
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text; save it as UTF-8, or choose another --output") from None
    newline = "\r\n" if "\r\n" in text else "\n"
    summaries = [summarize(subject) for subject in data.subjects if subject.source.report.step not in PLANS]
    if not summaries:
        raise InputError("the reports are of plans and not of a model; give the report next to a model")
    metadata = newline.join([META_BEGIN, *_metadata(summaries), META_END])
    section = newline.join([BEGIN, *_section(data, summaries), END])
    front, body = _split(text, name)
    is_useful = all(map(_holds, summaries))
    return (
        _with_metadata(front, metadata, newline, name, is_useful=is_useful)
        + _with_section(body, section, newline, name)
    ).encode()


def _split(text: str, name: str) -> tuple[str, str]:
    """The metadata with its fences (empty if there is none), and the rest."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    lines = text.removeprefix(mark).splitlines(keepends=True)
    if not lines or lines[0].rstrip() != _FENCE:
        return "", text
    end = next((i for i, line in enumerate(lines[1:], start=1) if line.rstrip() == _FENCE), None)
    if end is None:
        raise InputError(f"{name} begins with metadata that has no end; close it with a line of three dashes")
    return mark + "".join(lines[: end + 1]), "".join(lines[end + 1 :])


def _holds(summary: Summary) -> bool:
    """Whether the model has a useful guarantee of differential privacy, as its tag claims."""
    lead = summary.lead
    if lead is None or summary.check is Outcome.REFUTED or summary.headline == DO_NOT_RELEASE:
        return False
    if OF_OTHER_LOOPS & {assumption.name for assumption in lead.assumptions}:
        return False  # privctl did not run the training
    worth = severity(lead, summary.subject.source.report.mechanism)
    return worth in (Severity.GOOD, Severity.FAIR) and lead.notion is Notion.APPROXIMATE_DP


def _with_metadata(front: str, metadata: str, newline: str, name: str, *, is_useful: bool) -> str:
    if not front:
        tags = ["tags:", f"- {_TAG}"] if is_useful else []
        return newline.join([_FENCE, *tags, metadata, _FENCE, ""])
    if not is_useful:
        front = _untagged(front)
    span = _marked_section(front, META_BEGIN, META_END, name)
    outside = front if span is None else front[: span[0]] + front[span[1] :]
    if re.search(rf"(?m)^{KEY}\s*:", outside):
        raise InputError(f"{name} has {KEY} metadata that privctl did not write; remove it, or choose another --output")
    if span is not None:
        return front[: span[0]] + metadata + front[span[1] :]
    close = front.rstrip().rindex(_FENCE)
    return front[:close] + metadata + newline + front[close:]


def _untagged(front: str) -> str:
    """The metadata without the tag, since no useful guarantee holds."""
    tags = re.search(r"(?m)^tags:[ \t]*\r?\n((?:[ \t]*- .*\r?\n)+)", front)
    if tags is None:
        return front
    kept = re.sub(rf"(?m)^[ \t]*- [\"']?{_TAG}[\"']?[ \t]*\r?\n", "", tags[1])
    return front[: tags.start()] + (front[tags.start() : tags.start(1)] + kept if kept else "") + front[tags.end() :]


def _with_section(body: str, section: str, newline: str, name: str) -> str:
    span = _marked_section(body, BEGIN, END, name)
    if span is not None:
        return body[: span[0]] + section + body[span[1] :]
    gap = "" if not body.strip() else newline if body.endswith(("\n", "\r")) else 2 * newline
    return body + gap + section + newline


def _marked_section(text: str, begin: str, end: str, name: str) -> tuple[int, int] | None:
    """The start of the first mark and the end of the second; None if there are none. Raises InputError otherwise."""
    marks = (text.count(begin), text.count(end))
    if marks == (0, 0):
        return None
    start, stop = text.find(begin), text.find(end)
    if marks != (1, 1) or stop < start:
        raise InputError(
            f"{name} has marks of privctl that are not one pair ({begin} ... {end}); repair or remove them"
        )
    return start, stop + len(end)


def _metadata(summaries: list[Summary]) -> Iterator[str]:
    """The metadata as YAML; strings are written as in JSON, which is valid YAML."""
    yield f"{KEY}:"
    for summary in summaries:
        lead = summary.lead
        yield f"- model: {json_text(json.dumps(summary.subject.source.name))}"
        yield f"  status: {json.dumps('none' if lead is None else str(lead.status))}"
        if lead is not None:
            yield f"  epsilon: {'null' if lead.epsilon is None else _yaml(lead.epsilon)}"
            yield f"  delta: {_yaml(lead.delta)}"
            yield f"  notion: {json.dumps(str(lead.notion))}"
            means = meaning_of_example(lead)
            yield f"  unit: {json_text(json.dumps(f'{lead.unit} ({means})' if means else str(lead.unit)))}"
            yield f"  adjacency: {json.dumps(str(lead.adjacency))}"
        yield f"  audited: {json.dumps(bool(summary.subject.audits))}"
        yield f"  verified: {json.dumps(bool(summary.subject.checks))}"


def _yaml(value: float) -> str:
    """A number for YAML 1.1, which requires a decimal point before an exponent."""
    mantissa, mark, exponent = repr(float(value)).partition("e")
    return mantissa + (".0" if "." not in mantissa else "") + mark + exponent


def _section(data: PageData, summaries: list[Summary]) -> Iterator[str]:
    yield "## Privacy"
    yield ""
    for summary in summaries:
        yield from verdict_lines(summary, level=3)
        yield ""
        guarantees = summary.subject.source.report.guarantees
        if guarantees:
            yield from rows(
                ("guarantee", "amount", "status", "protects"),
                [(g.name, amount(g), str(g.status), protects(g)) for g in guarantees],
            )
            yield ""
        lead = summary.lead
        if lead is not None and lead.assumptions:
            yield f"{plain(lead.name)} rests on:"
            yield ""
            yield from (f"- {a.state}: {plain(a.statement)}" for a in lead.assumptions)
            yield ""
    yield f"*Made by privctl {plain(data.version)} from privacy reports; it repeats them and proves nothing.*"
