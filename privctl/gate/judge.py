"""The gate's judgement on a set of reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from privctl.domain.gate import FileLine, Finding, GateJudgement, GateOutcome
from privctl.domain.shown import counted
from privctl.gate import companions
from privctl.gate.checks import CHECKS, RULES
from privctl.gate.checks.recomputed import missing_for_files
from privctl.gate.checks.steps import stopping_verdicts
from privctl.gate.judged_model import (
    MODEL,
    JudgedModel,
    canary_gradient_findings,
    check_model_at_hand,
    judged_models,
    unrelated_reports,
)
from privctl.gate.model_at_hand import ModelAtHand
from privctl.gate.policy import Policy
from privctl.gate.report_set import READABLE, ReportSet, read_report_set
from privctl.gate.waivers import apply

#: Most findings of one kind; programs that read results, such as GitHub, reject files with many thousands.
_MOST = 100


def judge(paths: Sequence[Path], policy: Policy, model: ModelAtHand | None, now: datetime) -> GateJudgement:
    """Check the reports at ``paths``, and ``model`` if given, against ``policy`` at the time ``now`` (UTC).

    Every fault of a report becomes a finding that keeps the gate from passing; no exception is raised.
    """
    report_set = read_report_set(paths)
    cases = judged_models(report_set, model, now)
    raw = [*report_set.faults, *_credibility(report_set, cases, policy, model, FileLine(path=str(paths[0])))]
    for case in cases:
        for _, check in CHECKS.values():
            raw += (replace(finding, model=case.name) for finding in check(case, policy))
    covered, notes = apply(list(dict.fromkeys(raw)), policy.waivers, now.date())
    findings, more = _truncate(covered)
    return GateJudgement(
        findings=findings,
        notes=(
            *notes,
            *more,
            *report_set.notes,
            *_notes(report_set, cases, model),
            *_settings_notes(policy),
            *_files_notes(cases, policy),
        ),
        settings=policy.settings,
        models=tuple(case.name for case in cases),
        rules=tuple(RULES.values()),
        audited=any(report.report.step == "audit" for report in report_set.all),
    )


def _credibility(
    report_set: ReportSet, cases: Sequence[JudgedModel], policy: Policy, model: ModelAtHand | None, first: FileLine
) -> Iterator[Finding]:
    """Check that the reports can be read and are about the model."""
    if report_set.given:
        count = len(report_set.given)
        yield Finding(
            rule=READABLE,
            outcome=GateOutcome.PASS,
            subject="reports",
            message=f"{count} report{'s' if count > 1 else ''} read, and {len(report_set.followed)} that they build on",
            place=report_set.given[0].place(),
        )
    if not cases:
        yield _model_finding(
            GateOutcome.INCONCLUSIVE,
            "reports",
            "no report that could be read is about a model",
            "give the report that was written with the model",
            first,
        )
    for case in cases:
        yield from companions.check(case, model)
        yield from canary_gradient_findings(case)
        if model is not None:
            yield from check_model_at_hand(case, model)
        elif policy.require_model:
            yield _model_finding(
                GateOutcome.INCONCLUSIVE,
                case.name,
                "the model itself was not given",
                "give it with --model",
                policy.places.get("require_model", case.default_place),
            )
    for report, about in unrelated_reports(report_set, cases):
        if about == "another model":
            outcome, fix = GateOutcome.FAIL, "give the reports of this model alone"
        elif about == "no model" and cases:
            outcome, fix = GateOutcome.INCONCLUSIVE, "leave it out: it is not about this model"
        else:
            continue
        message = f"the {report.report.step} report is about {about}"
        yield _model_finding(outcome, str(report.path), message, fix, report.place())
        yield from stopping_verdicts(report, policy)


def _model_finding(outcome: GateOutcome, subject: str, message: str, fix: str, place: FileLine) -> Finding:
    return Finding(rule=MODEL, outcome=outcome, subject=subject, message=message, fix=fix, place=place)


def _notes(report_set: ReportSet, cases: Sequence[JudgedModel], model: ModelAtHand | None) -> Iterator[str]:
    for report, about in unrelated_reports(report_set, cases):
        if about == "an earlier model of the chain":
            yield f"{report.path} is about an earlier model of the chain, so its results do not count for this one"
    if model is None and cases:
        yield "the model itself was not checked: --model checks that its files are those that the reports describe"


def _settings_notes(policy: Policy) -> Iterator[str]:
    if not policy.recompute:
        yield (
            "recompute is false: no guarantee was recomputed, and no audit was checked for contradictions or against "
            "its files"
        )
    if policy.field is not None and not policy.require_signer:
        yield (
            f"whose records were trained on, by {policy.field!r}, is the word of reports that nobody had to sign: "
            "require_signer shows who vouches for it, and privctl verify --data counts them"
        )


def _files_notes(cases: Sequence[JudgedModel], policy: Policy) -> Iterator[str]:
    """A note if audits were judged by what their reports say alone."""
    if policy.recompute and any(case.audits for case in cases) and (package := missing_for_files()):
        yield (
            f"no audit was compared with the ranks and scores that it kept, because {package} is not installed: what "
            "the reports say of attacks was taken at their word"
        )


def _truncate(findings: Sequence[Finding]) -> tuple[tuple[Finding, ...], list[str]]:
    """At most ``_MOST`` findings of each rule and outcome, and notes on how many more there were."""
    kept, counts = [], Counter[tuple[str, GateOutcome, bool]]()
    for finding in findings:
        kind = (finding.rule, finding.outcome, bool(finding.waiver))
        counts[kind] += 1
        if counts[kind] <= _MOST:
            kept.append(finding)
    more = [
        f"{counted(count - _MOST, 'more finding')} of {rule} ({outcome}) left out"
        for (rule, outcome, _), count in counts.items()
        if count > _MOST
    ]
    return tuple(kept), more
