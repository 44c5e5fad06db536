"""The warnings that an audit report must have; those of other steps are in ``required``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from privctl.domain.events import TruncatedGaussian
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from privctl.reports.parameters import parameters_as
from verify.audits.canaries.taking_part import steps_alone
from verify.audits.terms import BOUND, NOISE, of_split, sides_by_coins
from verify.texts.warnings import forms, of_audits, of_canaries, of_extraction, of_membership, of_scores
from verify.texts.warnings.forms import form
from verify.texts.warnings.of_noise import noise_at_most

_COLUMN, _BFLOAT16 = "column ", "bfloat16"


def contradicted(report: PrivacyReport) -> Iterator[str]:
    """Yields the texts that the rest of an audit report contradicts."""
    if report.step == "audit" and parameters_as(AuditParameters, report).dtype != _BFLOAT16:
        yield of_audits.IN_BFLOAT16


def of_audit(report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[str]:
    """Yields the texts that an audit report must have."""
    stated = parameters_as(AuditParameters, report)
    files = {} if stated.asked is None else stated.asked.files
    records = bool(stated.attack) and all(name.startswith(_COLUMN) for name in stated.attack)
    if not (stated.attack or stated.canary_conditions or stated.extraction or "secrets" in files):
        yield from () if stated.asked is None else _model_warnings(stated.asked)
        return
    yield of_audits.PRIVATE
    if stated.dtype == _BFLOAT16:
        yield of_audits.IN_BFLOAT16
    if records:
        yield from _column_warnings(stated)
    elif stated.attack:
        yield from _membership_warnings(stated)
    yield from _backwards(report, stated)
    yield from _guesses_not_made(report, stated)
    if stated.canary_conditions:
        yield from _canary_warnings(report, stated, parents)
    if stated.extraction:
        yield from _extraction_warnings(stated)
    if "secrets" in files:
        yield from (of_extraction.NOT_INDEPENDENT, of_extraction.OTHER_CANDIDATES)
        if "plan" in files:
            yield of_extraction.ALLOWED
        if "heldout secrets" in files:
            yield of_extraction.HELD_OUT_SECRETS


def _model_warnings(asked: AskedAudit) -> Iterator[str]:
    yield from (of_scores.INDEPENDENT, of_scores.ONE_RECORD, of_scores.PROCEDURE)
    if asked.threshold is not None:
        yield of_scores.threshold(asked.threshold)


def _membership_warnings(stated: AuditParameters) -> Iterator[str]:
    if stated.split_commitment is None:
        yield of_membership.ASSERTED
    else:
        yield of_membership.drawn(stated.split_commitment)
        yield of_membership.TRAINED_ON
    yield of_membership.tried(stated.attack)
    yield from (of_membership.INTERVALS, of_membership.STRONGER)
    yield from _group_warnings(stated)


def _group_warnings(stated: AuditParameters) -> Iterator[str]:
    if stated.group_by is not None:
        yield of_membership.groups(stated.group_by)
        if stated.similar_names:
            yield forms.alike_users(stated.similar_names, stated.group_by)


def _column_warnings(stated: AuditParameters) -> Iterator[str]:
    tied = stated.score_conditions
    if stated.split_commitment is not None:
        yield of_membership.drawn(stated.split_commitment)
        yield of_membership.TRAINED_ON
        yield of_scores.NOT_FITTED if tied is None else of_scores.FITTED
    else:
        yield of_scores.NOTHING_SHOWN if tied is None else of_scores.NO_SPLIT_SHOWN
    yield from _group_warnings(stated)
    for condition in tied or ():
        yield of_scores.of_model(re.escape(condition.statement))
    yield of_scores.columns(len(stated.attack), grouped=stated.group_by is not None)
    yield from (of_scores.COLUMN_INTERVALS, of_scores.STRONGER_SCORES)


def _backwards(report: PrivacyReport, stated: AuditParameters) -> Iterator[str]:
    for item in report.evidence:
        chance = item.details.get("chance")
        if item.method not in stated.attack or item.quantity != "AUC" or item.upper is None or chance is None:
            continue
        if item.upper < chance:
            yield of_membership.backwards(item.method, chance)


def _guesses_not_made(report: PrivacyReport, stated: AuditParameters) -> Iterator[str]:
    """Yields the texts on guesses not made: one for all bounds of a split, and one for each bound from canaries."""
    bounds = [item for item in report.evidence if item.method == BOUND]
    if missing := sum(_missing(item) for item in bounds if item.lower is not None and of_split(item, stated)):
        yield form(of_membership.NOT_MADE, guesses=counted(missing, "guess was", "guesses were"), bounds="the bounds")
    for item in bounds if stated.canary_commitment is not None else ():
        if not of_split(item, stated) and (missing := _missing(item)):
            guesses = counted(missing, "guess was", "guesses were")
            yield form(of_membership.NOT_MADE, guesses=guesses, bounds=f"the bound on {re.escape(item.quantity)}")


def _missing(item: Evidence) -> int:
    sets = range(1, int(item.details.get("sets", 0)) + 1)
    return int(sum(item.details[f"guesses {i}"] - item.details.get(f"made {i}", 0) for i in sets))


def _canary_warnings(report: PrivacyReport, stated: AuditParameters, parents: Sequence[PrivacyReport]) -> Iterator[str]:
    conditions = stated.canary_conditions or ()
    yield from (noise_at_most(item) for item in report.evidence if item.method == NOISE and item.upper is not None)
    if stated.canary_commitment is None:  # canary gradients of the training itself
        yield from (of_canaries.TRAINING_TESTED, of_canaries.STRONGEST)
        yield from (
            re.escape(condition.statement) for condition in conditions if condition.state is AssumptionState.ASSERTED
        )
        mechanism = stated.canary_mechanism
        if mechanism is not None and any(isinstance(event, TruncatedGaussian) for event in mechanism.events):
            yield of_canaries.UNCUT
        if steps_alone(report, stated, parents):
            yield of_canaries.STEPS_ALONE
        return
    yield of_canaries.MADE_UP
    for each in conditions:
        text = {AssumptionState.ASSERTED: of_canaries.TAKEN, AssumptionState.VIOLATED: of_canaries.BROKEN}.get(
            each.state
        )
        if text is not None:
            yield form(text, statement=re.escape(each.statement))
    most = max((int(i.details["copies"]) for i in report.evidence if i.method == BOUND), default=1)
    if most > 1:
        yield form(of_canaries.COPIES, most=str(most))
    if (stated.canary_exact_groups or 0) < (stated.canary_groups or 0):
        yield of_canaries.exposure(None)


def _extraction_warnings(stated: AuditParameters) -> Iterator[str]:
    asked, settings = stated.asked, stated.extraction or {}
    yield of_extraction.ALL_OF_TRAINING
    if asked is None:
        return
    tokens = settings.get("suffix_tokens")
    yield of_extraction.after_what(tokens if isinstance(tokens, int) else None, searched=asked.adversarial)
    if asked.exact_only:
        yield form(of_extraction.NOT_NEAR, why="was not asked for")
    if "heldout" not in asked.files:
        yield of_extraction.NO_CONTROL
    elif sides_by_coins(stated.extraction):  # the split may be for membership alone, see verify.audits.asked
        yield of_extraction.prefixed(of_membership.drawn(stated.split_commitment))
        yield of_extraction.prefixed(of_membership.TRAINED_ON)
    else:
        yield of_extraction.CONTROL
