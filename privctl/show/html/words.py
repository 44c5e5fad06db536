"""The parts of the page that are text: assumptions, verdicts, limits, files and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, Risk, RiskMeasure
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Verdict
from privctl.show.html.values import MOST_ROWS, Pill, Table, state_word, table
from privctl.show.page_data import PageData, ReportSource
from privctl.show.plain import clean
from privctl.show.summary import verdicts_of, word_of
from privctl.show.text.style import bound, short

#: Most characters of a setting's value.
_SETTING = 160
_RISKS = {
    RiskMeasure.ADVANTAGE: "advantage (true minus false positive rate)",
    RiskMeasure.TRUE_POSITIVE_RATE: "true positive rate at {at} false positives",
    RiskMeasure.POSTERIOR: "probability of guessing a secret, where a blind guess has {at}",
    RiskMeasure.AUC: "area under the ROC curve",
}


def shared_assumptions(report: PrivacyReport) -> list[Assumption]:
    """The assumptions that several guarantees of ``report`` rest on, each once."""
    counts = Counter(
        assumption for guarantee in report.guarantees for assumption in dict.fromkeys(guarantee.assumptions)
    )
    return [assumption for assumption, count in counts.items() if count > 1]


def assumption_counts(guarantee: Guarantee) -> str:
    """The number of a guarantee's assumptions in each state, in words."""
    states = Counter(assumption.state for assumption in guarantee.assumptions)
    return ", ".join(f"{states[state]} {state}" for state in AssumptionState if states[state])


def risk(stated: Risk) -> str:
    """A bound on an attacker, in words."""
    rate = "–" if stated.at is None else f"{100 * stated.at:g} %"
    return f"{_RISKS[stated.measure].format(at=rate)}: {bound(stated.bound, 4)}"


def verdict_table(data: PageData) -> Table | None:
    """A table of the verdicts of all reports, worst first; None if there are none."""
    verdicts = list(verdicts_of(data.sources))
    rows = [
        (verdict.subject, _outcome(verdict, source), verdict.reason, source.name, source.report.step)
        for source, verdict in verdicts[:MOST_ROWS]
    ]
    heads = ("claim or question", "outcome", "why", "report", "step")
    return table("Verdicts", heads, rows, len(verdicts)) if rows else None


def _outcome(verdict: Verdict, source: ReportSource) -> Pill:
    state = verdict.outcome if verdict.decisive or verdict.status is None else verdict.status
    return Pill(state=state, word=word_of(verdict, source.report.step))


def digest_table(data: PageData) -> Table | None:
    """A table of the results of comparing files with the digests in reports; None if there are none."""
    rows = [
        (verdict.subject, Pill(state=verdict.outcome, word=state_word(verdict.outcome)), verdict.reason, source.name)
        for source in data.sources
        for verdict in source.digests
    ]
    return table("Digests of files", ("file", "outcome", "why", "report"), rows) if rows else None


def limits(data: PageData) -> list[tuple[str, list[str]]]:
    """The warnings and omissions of all reports, each once, with the names of the reports that state it."""
    sources_by_line: dict[str, list[str]] = {}
    for source in data.sources:
        omitted = (f"Left out: {item.what}: {item.reason}" for item in source.report.omissions)
        for line in chain(source.report.warnings, omitted, source.left_out):
            sources_by_line.setdefault(line[0].upper() + line[1:] if line else line, []).append(source.name)
    return list(sources_by_line.items())


def file_table(source: ReportSource) -> Table | None:
    """A table of the files of one report; None if it lists none."""
    rows = [
        (verb, a.role, a.path, short(a.digest), f"{a.bytes:,}")
        for verb, artifacts in (("read", source.report.inputs), ("wrote", source.report.outputs))
        for a in artifacts
    ]
    return table(f"Files of {source.name}", ("", "role", "file", "digest", "bytes"), rows) if rows else None


def setting_table(source: ReportSource) -> Table | None:
    """A table of the settings of one report, without those that are unset or too large for a cell."""
    settings = source.report.parameters
    rows = [(name, text) for name, value in islice(settings.items(), MOST_ROWS) if (text := _setting(value))]
    total = len(rows) + max(0, len(settings) - MOST_ROWS)
    return table(f"Settings of {source.name}", ("setting", "value"), rows, total) if rows else None


def _setting(value: Any) -> str:
    """A setting's value as short text; empty if it is unset, nested or has many entries."""
    if isinstance(value, Mapping):
        return "" if len(value) > 6 or _is_nested(value.values()) else _entries(value)
    if isinstance(value, (list, tuple)):
        return "" if len(value) > 8 or _is_nested(value) else ", ".join(map(str, value))
    return "" if value is None else clean(str(value), _SETTING)


def _is_nested(values: Any) -> bool:
    return any(isinstance(value, (Mapping, list, tuple)) for value in values)


def _entries(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {item}" for key, item in value.items())
