"""Whether the verdicts of an audit on extraction, secrets and canaries follow from its evidence, in both directions.

A verdict that hides a finding passes a leaking model, and one without a finding accuses an honest one. Standard library
only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from verify.audits.extraction import alike_texts
from verify.audits.extraction import exact_tests as extraction_tests

EXTRACTION, _COMPLETION, _EXPOSURE = "extraction", "canary completion", "canary exposure"
_EXTRACTED = "rate on training text"
#: Verbatim and near-verbatim.
_BEYOND = ("rate beyond held-out text", "near-verbatim rate beyond held-out text")
#: The conditions on its manifest that every audit of canaries states.
_PLANTED = frozenset({
    "commitment", "independent coins", "number included", "distinct canaries", "trained on the planted data",
})  # fmt: skip
#: Subjects of the verdict on each kind of attack.
MEMORIZED, TRACELESS = "training text cannot be extracted", "planted canaries left no trace"
_TRACE, NOT_EASIER = "secret trace", "training made no secret easier to tell"
_PROTECTION, PLANNED = "secret protection", "(prior, posterior)-secret protection, as planned in "
#: With fewer canaries or secrets, and with references that tell as much as fewer canaries, finding nothing says little.
_ENOUGH, _EFFECTIVE = 100, 46
#: A plan's bounds that more than this share of first ranks must contradict are not tested by one run.
_GROSS = 0.5


def missing_inputs(report: PrivacyReport, roles: Sequence[str]) -> Iterator[str]:
    """Yields a sentence for each role of record files that the inputs lack."""
    for role in sorted(set(roles) - {item.role for item in report.inputs}):
        yield f"its inputs name no {role}, so that nothing shows which records it is about"


def outcome_of(report: PrivacyReport, subject: str) -> Outcome | None:
    """The outcome of the verdict on ``subject``; None if there is no such verdict."""
    return next((verdict.outcome for verdict in report.verdicts if verdict.subject == subject), None)


def other_verdicts(report: PrivacyReport, conditions: Sequence[Assumption], *, by_coins: bool) -> Iterator[str]:
    """Checks the verdicts on extraction, secrets and canaries; ``conditions`` are those of the canaries."""
    yield from _extraction(report, by_coins=by_coins)
    yield from _secrets(report)
    yield from _plan(report)
    yield from _canaries(report, conditions)


def _extraction(report: PrivacyReport, *, by_coins: bool) -> Iterator[str]:
    extracted = {item.quantity: item for item in report.evidence if item.method == EXTRACTION}
    if _EXTRACTED not in extracted:
        return
    yield from missing_inputs(report, ("train",))
    accusing = [extracted[name] for name in _BEYOND if name in extracted and (extracted[name].lower or 0) > 0]
    accusing += [item for item in report.evidence if extraction_tests.refutes(item)]
    doubted = alike_texts.unconfirmed(report.evidence)
    refuted = any((item.method, item.quantity) not in doubted for item in accusing)
    why = extraction_tests.why_inconclusive(extracted.get(_BEYOND[0]))
    why = ("what comes out is not compared with texts alike" if doubted else "") or why
    yield from _conclusion(report, MEMORIZED, refuted=refuted, why_undecided=why)
    yield from alike_texts.uncalled_for(report.evidence, () if by_coins else accusing)


def _secrets(report: PrivacyReport) -> Iterator[str]:
    traces = [item for item in report.evidence if item.method == _TRACE]
    if not traces and outcome_of(report, NOT_EASIER) is None:
        return
    significant = [item for item in traces if _is_significant(item)]
    refuted = any(not alike_texts.is_doubtful(item, report.evidence) for item in significant)
    able = [item for item in traces if item.details.get("least_p_value", 0.0) <= item.details.get("level", 1.0)]
    most = max((min((size for size in item.samples.values() if size), default=0) for item in able), default=0)
    why = "its test is confounded" if significant else "" if most >= _ENOUGH else f"it compares no {_ENOUGH} secrets"
    yield from _conclusion(report, NOT_EASIER, refuted=refuted, why_undecided=why)
    yield from _misread(traces)


def _plan(report: PrivacyReport) -> Iterator[str]:
    """Checks the verdict on a plan of protection, which follows from a test of secrets drawn at random."""
    item = next((item for item in report.evidence if item.method == _PROTECTION), None)
    subject = next((verdict.subject for verdict in report.verdicts if verdict.subject.startswith(PLANNED)), None)
    if subject is None:
        if item is not None:
            yield f"{item.method}: it tests the bounds of a plan, and has no verdict on them"
        return
    names = {PurePosixPath(artifact.path).name for artifact in report.inputs if artifact.role == "plan"}
    if subject.removeprefix(PLANNED) not in names:
        yield f"its verdict on {subject!r} is on a plan that its inputs do not name"
    refuted, why = False, "nothing tests the bounds of the plan"
    if item is not None:
        refuted = _is_significant(item)
        few = not item.details.get("needed", 1.0) <= _GROSS * item.samples.get("secrets", 0)
        why = "one run would hardly have contradicted its bounds" if few else ""
    yield from _conclusion(report, subject, refuted=refuted, why_undecided=why)


def _canaries(report: PrivacyReport, conditions: Sequence[Assumption]) -> Iterator[str]:
    tests = [item for item in report.evidence if item.method == _EXPOSURE and "detected" in item.details]
    if not tests:
        return
    detected, control = (
        any(item.details["detected"] for item in tests if word in item.quantity) for word in ("included", "left out")
    )
    states = {condition.name: condition.state for condition in conditions}
    yield from (
        f"it does not state whether this holds for its canaries: {name}" for name in sorted(_PLANTED - states.keys())
    )
    broken = control or AssumptionState.VIOLATED in states.values()
    why = "a condition of its comparison does not hold" if broken else _why_few(report, tests)
    yield from _conclusion(report, TRACELESS, refuted=detected and not broken, why_undecided=why)
    yield from _misread(tests)


def _why_few(report: PrivacyReport, tests: Sequence[Evidence]) -> str:
    """Why canaries that left no trace show little; "" if there are enough, and the model completes none."""
    included = next((item for item in tests if "included" in item.quantity), None)
    if included is None or included.samples.get("canaries", 0) < _ENOUGH:
        return f"it has no {_ENOUGH} canaries that were included"
    if included.details.get("effective", _EFFECTIVE) < _EFFECTIVE:
        return "its canaries share their references"
    completed = [item for item in report.evidence if item.method == _COMPLETION and "included" in item.quantity]
    if any(item.details.get("disclosed") for item in completed):
        return "the model completes a canary"
    return ""


def _misread(tests: Sequence[Evidence]) -> Iterator[str]:
    yield from (
        f"{item.quantity}: whether a trace was found is not what its p-value says"
        for item in tests
        if bool(item.details.get("detected")) is not _is_significant(item)
    )


def _is_significant(item: Evidence) -> bool:
    return item.details.get("p_value", 0.0) <= item.details.get("level", 1.0)


def _conclusion(report: PrivacyReport, subject: str, *, refuted: bool, why_undecided: str) -> Iterator[str]:
    """Yields a sentence if the verdict on ``subject`` does not follow.

    ``why_undecided`` says why evidence that refutes nothing does not support it either; "" if it does.
    """
    outcome = outcome_of(report, subject)
    if outcome is None:
        yield f"the verdict on {subject!r} is missing"
    elif refuted and outcome is not Outcome.REFUTED:
        yield f"its verdict on {subject!r} is {outcome}, but its evidence refutes that"
    elif outcome is Outcome.REFUTED and not refuted:
        yield f"its verdict on {subject!r} is {outcome}, but its evidence does not refute that"
    elif outcome in (Outcome.CONSISTENT, Outcome.PROVED) and why_undecided:
        yield f"its verdict on {subject!r} is {outcome}, but {why_undecided}"
