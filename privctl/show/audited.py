"""What audits measured of a model without a guarantee: a line each for membership, extraction and secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.show.decision import not_measured
from privctl.show.leaks import EXTRACTION, MEMBERSHIP, SECRETS, WITHOUT_MODEL
from privctl.show.page_data import JudgedSubject
from privctl.show.text.style import number


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPart:
    """One part of an audit: its ``name``, its result as ``text``, and whether it was ``measured``."""

    name: str
    text: str
    measured: bool


#: Name of a part -> the subject of its verdict; tests for its evidence, of which the largest value of the first kind
#: found is shown; and the text if the audit was not asked for it.
_PARTS: dict[str, tuple[str, tuple[Callable[[Evidence], bool], ...], str]] = {
    "Membership": (
        MEMBERSHIP,
        (lambda item: item.quantity == "AUC" and item.method not in WITHOUT_MODEL,),
        "no audit tested whether training records can be told from others (privctl audit membership)",
    ),
    "Extraction": (
        EXTRACTION,
        (
            lambda item: item.method == "extraction" and item.quantity == "rate beyond held-out text",
            lambda item: item.method == "extraction" and item.quantity == "rate on training text",
        ),
        "no audit tested which training text the model reproduces (privctl audit extraction)",
    ),
    "Secrets": (
        SECRETS,
        (lambda item: item.method.startswith("secret "),),
        "no audit tested whether names, numbers and other secrets can be guessed (privctl audit secrets)",
    ),
}


def measured_parts(subject: JudgedSubject) -> tuple[MeasuredPart, ...]:
    """The parts of ``subject`` as each of its audits measured them; none if its report states a guarantee."""
    if not subject.audits or subject.source.report.guarantees:
        return ()
    return tuple(part for name in _PARTS for part in _parts_measured(name, subject))


def _parts_measured(name: str, subject: JudgedSubject) -> Iterator[MeasuredPart]:
    about, kinds, not_requested = _PARTS[name]
    reports = [source.report for source in subject.audits]
    lines = [line for report in reports if (line := _result(report, about, kinds))]
    yield from (MeasuredPart(name=name, text=line, measured=True) for line in lines)
    if lines:
        return
    beginning = f"{name.lower()} was not measured: "
    failed = [line for report in reports for line in not_measured(report) if line.startswith(beginning)]
    text = f"not measured: {failed[0].removeprefix(beginning)}" if failed else f"not measured: {not_requested}"
    yield MeasuredPart(name=name, text=f"{text}.", measured=False)


def _result(report: PrivacyReport, about: str, kinds: tuple[Callable[[Evidence], bool], ...]) -> str:
    """The verdict of one audit with its main figure; empty if the audit has no such verdict."""
    verdict = next((verdict for verdict in report.verdicts if verdict.subject == about), None)
    if verdict is None:
        return ""
    stated = f"“{verdict.subject}” is {verdict.audit_word}"
    for kind in kinds:
        items = [item for item in report.evidence if item.estimate is not None and kind(item)]
        if items:
            item = max(items, key=lambda item: item.estimate or 0.0)
            between = f"{number(item.lower, 3)} to {number(item.upper, 3)}"
            return f"{stated}; {item.method}, {item.quantity}: {number(item.estimate, 3)} ({between})."
    return f"{stated}: {verdict.reason}."
