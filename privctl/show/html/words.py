"""The parts of the page that are text: guarantees with what they rest on, verdicts, limits, files and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from privctl.domain.guarantee import AssumptionState, Guarantee, RiskMeasure, Scope
from privctl.domain.verdict import Verdict
from privctl.show.dossier import PageData, ReportSource
from privctl.show.html.figure import MOST_ROWS, colour, pill, table
from privctl.show.html.markup import Node, clean, el
from privctl.show.summary import amount, protects, verdicts_of, weak, word_of
from privctl.show.text.style import number, short

_MOST = 60
#: Letters of one setting's value.
_SETTING = 160
_RISKS = {
    RiskMeasure.ADVANTAGE: "advantage (true minus false positive rate)",
    RiskMeasure.TRUE_POSITIVE_RATE: "true positive rate at {at} false positives",
    RiskMeasure.POSTERIOR: "chance of naming a secret that a blind guess has {at} of",
    RiskMeasure.AUC: "area under the ROC curve",
}


def guarantee_cards(source: ReportSource, scope: Scope) -> list[Node]:
    """The guarantees of one report that have this scope."""
    found = [guarantee for guarantee in source.report.guarantees if guarantee.scope is scope]
    return [_guarantee(guarantee, source) for guarantee in found[:_MOST]]


def _guarantee(guarantee: Guarantee, source: ReportSource) -> Node:
    states = Counter(assumption.state for assumption in guarantee.assumptions)
    rules_out_little = weak(guarantee, source.report)
    summary = ", ".join(f"{states[state]} {state}" for state in AssumptionState if states[state])
    return el(
        "article",
        el("h3", source.name, class_="eyebrow"),
        el("p", el("strong", guarantee.name), " ", pill(guarantee.status), class_="step"),
        el("p", amount(guarantee), class_="amount"),
        el("p", f"Protects {protects(guarantee)}.", class_="small"),
        el("p", f"By {guarantee.accountant}.", class_="muted small"),
        el("p", guarantee.note, class_="small") if guarantee.note else None,
        el("p", rules_out_little, class_="alarm small") if rules_out_little else None,
        el("details", el("summary", f"Rests on {len(guarantee.assumptions)} assumptions: {summary}"), el(
            "ul", [el("li", pill(a.state), " ", a.statement) for a in guarantee.assumptions[:_MOST]], class_="plain"
        )) if guarantee.assumptions else None,
        el("details", el("summary", "What it leaves an attacker, at most"), el(
            "ul", [el("li", f"{_risk(r.measure, r.at)}: {number(r.bound, 4)}") for r in guarantee.risks[:_MOST]]
        )) if guarantee.risks else None,
        _further(guarantee),
        class_=f"card guarantee {colour(guarantee.status)}",
    )  # fmt: skip


def _further(guarantee: Guarantee) -> Node | None:
    numbers = (
        ("noise multiplier", guarantee.noise_multiplier),
        ("L2 sensitivity", guarantee.sensitivity),
        ("epsilon that follows from the same noise", guarantee.follows),
        ("no epsilon holds below", guarantee.floor),
    )
    known = [el("li", f"{name}: {number(value)}") for name, value in numbers if value is not None]
    return el("details", el("summary", "Its numbers"), el("ul", known)) if known else None


def _risk(measure: RiskMeasure, at: float | None) -> str:
    return _RISKS[measure].format(at="–" if at is None else f"{100 * at:g} %")


def verdict_table(dossier: PageData) -> Node | None:
    """Every verdict of every report, violations on top."""
    found = list(verdicts_of(dossier.sources))
    rows = [
        (verdict.subject, _outcome(verdict, source), verdict.reason, source.name, source.report.step)
        for source, verdict in found[:MOST_ROWS]
    ]
    heads = ("claim or question", "outcome", "why", "report", "step")
    return table("Verdicts", heads, rows, len(found)) if rows else None


def _outcome(verdict: Verdict, source: ReportSource) -> Node:
    if verdict.decisive or verdict.status is None:
        return pill(verdict.outcome, word_of(verdict, source.report.step))
    return pill(verdict.status, word_of(verdict, source.report.step))


def digest_table(dossier: PageData) -> Node | None:
    """What came of holding files against the digests that reports record."""
    pairs: list[tuple[ReportSource, Verdict]] = [(s, v) for s in dossier.sources for v in s.digests]
    rows = [(verdict.subject, pill(verdict.outcome), verdict.reason, source.name) for source, verdict in pairs]
    return table("Digests of files at hand", ("file", "outcome", "why", "report"), rows) if rows else None


def limits(dossier: PageData) -> Iterator[Node]:
    """Warnings and omissions as the reports have them; what several say alike stands once."""
    said: dict[str, list[str]] = {}
    for source in dossier.sources:
        omitted = (f"Left out: {item.what}: {item.reason}" for item in source.report.omissions)
        for line in chain(source.report.warnings, omitted, source.left_out):
            said.setdefault(line[0].upper() + line[1:] if line else line, []).append(source.name)
    if said:
        items = [
            el(
                "li",
                line,
                " ",
                el("span", f"({', '.join(names[:4])}{', …' if len(names) > 4 else ''})", class_="muted small"),
            )
            for line, names in list(said.items())[:_MOST]
        ]
        yield el("ul", items)
        if len(said) > _MOST:
            yield el("p", f"{len(said) - _MOST} more are in the reports.", class_="muted")


def appendix(source: ReportSource) -> Node:
    """Settings, files and versions of one report, on demand."""
    report = source.report
    files = [
        (verb, a.role, a.path, short(a.digest), f"{a.bytes:,}")
        for verb, artifacts in (("read", report.inputs), ("wrote", report.outputs))
        for a in artifacts
    ]
    settings = [(name, _setting(value)) for name, value in islice(report.parameters.items(), MOST_ROWS)]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return el(
        "details",
        el("summary", f"{report.step}: {source.name}"),
        el("p", f"Digest {source.digest}. Made with {versions}.", class_="muted small"),
        table(f"Files of {source.name}", ("", "role", "file", "digest", "bytes"), files) if files else None,
        table(f"Settings of {source.name}", ("setting", "value"), settings, len(report.parameters))
        if settings
        else None,
    )


def _setting(value: Any) -> str:
    """A value in a few words, without walking through all of one that is large."""
    if isinstance(value, Mapping):
        return f"{len(value)} entries" if len(value) > 6 or _deep(value.values()) else _joined(value)
    if isinstance(value, (list, tuple)):
        return f"{len(value)} entries" if len(value) > 8 or _deep(value) else ", ".join(map(str, value))
    return clean(str(value), _SETTING)


def _deep(values: Any) -> bool:
    return any(isinstance(value, (Mapping, list, tuple)) for value in values)


def _joined(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {item}" for key, item in value.items())
