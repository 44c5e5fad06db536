"""How an audit divides its allowed probability of error among its tests and intervals.

A larger share than the audit's accuses too often. A smaller one hides a finding: its p-value is then above the level,
and its interval holds what chance gives. Standard library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from verify.audits.extraction import exact_tests
from verify.audits.terms import BEYOND, BOUND, METHODS, OVER_BLIND, of_split, sides_by_coins

#: The probability that any conclusion of an audit is wrong; its parts share it equally (Bonferroni).
_ALPHA = 0.05
#: The role of the file that a part is asked about; canaries may also be those that an attack on secrets reads.
_MEMBERS, _CANARIES, _OTHER_PARTS = "members", "canaries", ("train", "secrets")
#: The shares of a part's error: of bounds on epsilon, of tests of canaries or secrets and their intervals.
_BOUNDS, _TESTS, _INTERVALS, _PLAN = 0.5, 0.25, 0.25, 0.5
#: The tests of exposures: of the canaries included, and of those left out.
_EXPOSURES = 2
#: Quantities of attacks on membership that have an interval.
_MEMBERSHIP = ("AUC", OVER_BLIND, "accuracy", "precision", "recall")
#: The numbers of intervals and tests of an extraction: by documents, by edit distances, of optimized prefixes, and of
#: each other set of prompts.
_DOCUMENTS, _DISTANCES, _PREFIXES, _OUTSIDE, _COMPARED = 4, 2, 3, 5, 2
_ADVERSARIAL, _EXTRACTION = "adversarial prefix", "extraction"
#: Tests of records without the model, whose level is not corrected: a false alarm accuses nobody.
_BLIND, _GUARD = ("blind baseline", "secret baseline"), 0.2
_HELD_OUT = ", against held-out secrets, by "
_CLOSE = 1e-6


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each test or interval that has another share of the error than audits give it."""
    asked = parameters.asked
    if asked is None:
        return  # reported by another check
    part = _ALPHA / max(1, _part_count(asked, parameters))
    for items, share in (
        *_membership_shares(report, parameters, part),
        *_bound_shares(report, parameters, part),
        *_canary_shares(report, part),
        *_secret_shares(report, part),
        (_extraction_evidence(report), _share_of_extraction(report, parameters, asked, part)),
    ):
        yield from _share_faults(items, share)
    for item in report.evidence:
        if item.method in _BLIND and "p_value" in item.details and item.details.get("level") != _GUARD:
            yield f"{item.method}, {item.quantity}: the level of its test is not {_GUARD:g}, as in every audit"
    split = part * (1 - _BOUNDS if _is_drawn(parameters) else 1)
    for item in report.evidence:
        if item.test is not None and not math.isclose(item.test.level, split, rel_tol=_CLOSE):
            yield f"{item.method}: the level of its joint test is {item.test.level:g}, and such an audit's is {split:g}"


def _share_faults(items: Iterable[Evidence], share: float) -> Iterator[str]:
    for item in items:
        if item.estimate is None:
            continue  # it was not measured
        # A baseline states the level of its own test beside the confidence of its interval.
        stated = item.details.get("level", 1 - item.confidence) if "detected" in item.details else 1 - item.confidence
        if not all(
            math.isclose(value, share, rel_tol=_CLOSE, abs_tol=1e-12) for value in (stated, 1 - item.confidence)
        ):
            yield (
                f"{item.method}, {item.quantity}: it may be wrong with a probability of {stated:.6g}, and such an "
                f"audit gives it {share:.6g}"
            )


def _part_count(asked: AskedAudit, parameters: AuditParameters) -> int:
    """How many parts the audit has; 0 if it judges scores that it was given."""
    canaries = _CANARIES in asked.files and parameters.canary_conditions is not None
    return (_MEMBERS in asked.files) + canaries + sum(role in asked.files for role in _OTHER_PARTS)


def _is_drawn(parameters: AuditParameters) -> bool:
    """Whether the members are those of a split that privctl drew, so that bounds take part of the error."""
    return parameters.asked is not None and {"split", _MEMBERS} <= parameters.asked.files.keys()


def _membership_shares(
    report: PrivacyReport, parameters: AuditParameters, part: float
) -> Iterator[tuple[Sequence[Evidence], float]]:
    """The intervals of attacks and baselines, which share the error equally."""
    items = [item for item in report.evidence if item.quantity in _MEMBERSHIP or item.quantity.startswith("TPR at ")]
    yield items, part * (1 - _BOUNDS if _is_drawn(parameters) else 1) / max(1, len(items))


def _bound_shares(
    report: PrivacyReport, parameters: AuditParameters, part: float
) -> Iterator[tuple[Sequence[Evidence], float]]:
    """Bounds on epsilon and mu: of each score of a split, of each observation of gradients, or of each set."""
    bounds = [item for item in report.evidence if item.method in METHODS]
    drawn = [item for item in bounds if of_split(item, parameters)]
    yield drawn, _BOUNDS * part / max(1, sum(item.method == BOUND for item in drawn))
    planted = [item for item in bounds if not of_split(item, parameters)]
    if parameters.canary_commitment is None:
        yield planted, _BOUNDS * part
        return
    sets = {item.details.get("copies"): item.details.get("sets", 1.0) for item in planted}
    for item in planted:
        yield [item], _BOUNDS * part * item.details.get("sets", 1.0) / max(1.0, sum(sets.values()))


def _canary_shares(report: PrivacyReport, part: float) -> Iterator[tuple[Sequence[Evidence], float]]:
    """The tests of exposures, and the rates of completed canaries."""
    tests = [item for item in report.evidence if item.method == "canary exposure" and "detected" in item.details]
    yield tests, _TESTS * part / _EXPOSURES
    rates = [item for item in report.evidence if item.method == "canary completion"]
    yield rates, _INTERVALS * part / max(1, len(rates))


def _secret_shares(report: PrivacyReport, part: float) -> Iterator[tuple[Sequence[Evidence], float]]:
    """The tests of secrets, their rates, the baseline of their records, and the test of a plan."""
    tests = [item for item in report.evidence if item.method == "secret trace"]
    yield tests, _TESTS * part / max(1, len(tests))
    controlled = any(_HELD_OUT in item.quantity for item in tests)
    intervals = _INTERVALS * part / (2 if controlled else 1)
    rates = [item for item in report.evidence if item.method in ("secret reconstruction", "secret completion")]
    yield rates, intervals / max(1, len(rates))
    baseline = [item for item in report.evidence if item.method == "secret baseline"]
    yield baseline, intervals / (1 + sum(_HELD_OUT in item.quantity for item in tests))
    yield [item for item in report.evidence if item.method == "secret protection"], _PLAN * part


def _extraction_evidence(report: PrivacyReport) -> list[Evidence]:
    return [item for item in report.evidence if item.method in (_EXTRACTION, *exact_tests.SEARCHES)]


def _share_of_extraction(report: PrivacyReport, parameters: AuditParameters, asked: AskedAudit, part: float) -> float:
    """The error of each figure of an extraction, which all share equally."""
    measured = {(item.method, item.quantity) for item in report.evidence}
    sampled = not asked.greedy_only
    near = (_EXTRACTION, BEYOND[1]) in measured or any(name.startswith("near-verbatim rate on") for _, name in measured)
    number = 1 + _DOCUMENTS + sampled + _DISTANCES * near
    if (_EXTRACTION, "rate on held-out text") in measured:
        number += 2 + 2 * sampled + 2 * near
    if any(method == _ADVERSARIAL for method, _ in measured):
        number += _PREFIXES
    outside = {method for method, _ in measured if method in exact_tests.OUTSIDE}
    # Where coins drew the sides, either of two comparisons may be made, and each has its share.
    number += (_OUTSIDE + (_COMPARED if sides_by_coins(parameters.extraction) else 0)) * len(outside)
    number += exact_tests.CONTROL in outside
    return part / number
