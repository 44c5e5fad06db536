"""The warnings that a report must have, because its own entries call for them.

Each is given as the regular expression of its text, with numbers and names from the rest of the report filled in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from privctl.domain.guarantee import Adjacency, Scope
from privctl.domain.mechanism import Calibration, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.shared_records import SharedRecords
from privctl.domain.shown import counted
from privctl.domain.strength import is_useful, stated_regimes
from privctl.reports.parameters import (
    ExternalTrainingParameters,
    ProtectionParameters,
    ShadowParameters,
    TrainingParameters,
    parameters_as,
    readable,
)
from privctl.storage.reader import ADAPTER_NAME
from verify.methods import external_training
from verify.stated import method_of, training_of
from verify.texts.warnings import forms
from verify.texts.warnings import table as texts
from verify.texts.warnings.forms import form
from verify.warned.required_of_audits import of_audit

#: Maps a report, and those of its parent reports that are present, to the texts that it must have.
Rule = Callable[[PrivacyReport, Sequence[PrivacyReport]], Iterator[str]]

_ROUNDED, _SEEDED = "unrounded-weights", "a given seed"


def _of_training(report: PrivacyReport, _: Sequence[PrivacyReport]) -> Iterator[str]:
    stated, method = training_of(report), method_of(report)
    if method is not None:
        yield from method.warned(report, stated)
    if stated.adapter:
        yield form(texts.ADAPTER, base=forms.NAME, where="among the inputs")
    if stated.base_bits is not None:
        yield texts.IN_FOUR_BITS
    if stated.shared_records is not None and stated.shared_records != SharedRecords.ALL:
        yield texts.FIXED_GRAPH
    if stated.similar_names and stated.unit is not None:
        yield forms.alike_users(stated.similar_names, stated.unit)
    if report.guarantees:
        yield from _of_guaranteed(report, stated)
    if stated.plan is not None:
        yield texts.KEEP_THE_PLAN
    zeroed = max((epoch.get("zeroed_fraction", 0.0) for epoch in stated.history), default=0.0)
    if zeroed > 0:
        yield form(texts.ZEROED, share=re.escape(f"{100 * zeroed:.2g}"))
    if stated.gradient_canaries:
        measured = getattr(stated, "measurements_planned", None) is not None
        yield texts.canaries(stated.gradient_canaries, measured=measured)


def _of_guaranteed(report: PrivacyReport, stated: TrainingParameters) -> Iterator[str]:
    if any(artifact.role == "held-out" for artifact in report.inputs):
        yield texts.HELD_OUT_IS_PUBLIC
    yield from _large_delta(stated.delta, stated.examples)


def _of_noise(report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[str]:
    mechanism = report.mechanism
    if not isinstance(mechanism, WeightNoise):
        return
    yield from _of_guarantees(report, mechanism)
    if any(PurePosixPath(artifact.path).name == ADAPTER_NAME for artifact in report.outputs):
        known = any(artifact.role.startswith("base-") for artifact in report.inputs)
        where = "among the inputs" if known else "not known here"
        yield form(texts.ADAPTER, base=forms.NAME, where=where)
    if _SEEDED in (mechanism.noise_source or ""):
        yield texts.SEEDED
    rounded = (a.statement for g in report.guarantees for a in g.assumptions if a.name == _ROUNDED)
    for statement in dict.fromkeys(rounded):
        yield form(texts.ROUNDED, statement=re.escape(statement))
    if (count := len(mechanism.candidate_stddevs)) > 1:
        yield form(texts.CANDIDATES, count=str(count))
    before = {artifact.digest for artifact in report.inputs if artifact.role == "model"}
    for parent in parents:
        if parent.step == "noise" and any(artifact.digest in before for artifact in parent.outputs):
            yield texts.NOISED_BEFORE


def _of_guarantees(report: PrivacyReport, mechanism: WeightNoise) -> Iterator[str]:
    if mechanism.training is None:
        yield texts.NOTHING_CLAIMED
        return
    yield from texts.NOT_COVERED
    if not _useful(report, mechanism):
        yield texts.USELESS


def _useful(report: PrivacyReport, mechanism: WeightNoise) -> bool:
    """Whether some bound that follows from the stated properties of the loss is useful.

    With the published formula, bounds for replacing a record count; for other noise no entry states the neighbours.
    """
    assert mechanism.training is not None
    published = mechanism.calibration is not Calibration.GAUSSIAN
    names = {str(regime) for regime in stated_regimes(mechanism.training, None if published else mechanism.regime)}
    following = (g for g in report.guarantees if g.name in names and g.scope is Scope.THIS_MODEL)
    return any(is_useful(g) for g in following if not published or g.adjacency is Adjacency.REPLACE_ONE)


def _of_external(report: PrivacyReport, _: Sequence[PrivacyReport]) -> Iterator[str]:
    stated = parameters_as(ExternalTrainingParameters, report)
    if stated.program == external_training.UNKNOWN:
        yield texts.NOTHING_KNOWN
        return
    yield texts.EXTERNAL_OWNER
    if stated.program == "transformers-trainer":
        yield forms.UNPROTECTED
    if not report.guarantees:
        return
    yield forms.ONE_RUN
    yield from _large_delta(stated.delta, stated.examples)
    if stated.similar_names and stated.unit is not None:
        yield forms.alike_users(stated.similar_names, stated.unit)
    if stated.program == "opacus":
        yield from _of_history(stated)


def _large_delta(delta: float | None, examples: int | None) -> Iterator[str]:
    """The warning for a ``delta`` that is neither the default nor well below 1 / ``examples``."""
    if examples is None or examples < 1 or delta is None:
        return  # no training has so few examples, which other checks report
    if delta <= max(0.1 / examples, min(1e-5, examples**-1.1)):
        return
    near = "at least" if delta >= 1 / examples else "not far below"
    yield rf"delta {re.escape(f'{delta:g}')} is {near} 1 / {examples} (?:examples|records), so that .+"


def _of_history(stated: ExternalTrainingParameters) -> Iterator[str]:
    history = stated.accountant_history
    yield form(texts.OF_OPACUS, entries=counted(len(history), "entry", "entries"))
    for at, (noise, rate, _) in enumerate(history, start=1):
        if noise < rate:
            shown = {"noise": re.escape(f"{noise:g}"), "rate": re.escape(f"{rate:g}")}
            yield form(texts.SWAPPED_ENTRY, at=str(at), **shown)
        elif stated.examples and rate * stated.examples < 1:
            yield form(texts.SMALL_ENTRY, at=str(at), drawn=re.escape(f"{rate * stated.examples:.2g}"))


def _of_secrets_plan(report: PrivacyReport, _: Sequence[PrivacyReport]) -> Iterator[str]:
    yield from texts.SECRETS_PLAN
    stated = parameters_as(ProtectionParameters, report)
    if (unused := stated.secrets_in_no_record) and stated.secrets is not None:
        are = "is" if unused == 1 else "are"
        yield form(texts.UNUSED_SECRETS, count=str(unused), secrets=counted(stated.secrets, "secret"), are=are)


def _of_scan(report: PrivacyReport, _: Sequence[PrivacyReport]) -> Iterator[str]:
    yield texts.KEEP_THE_BOOK
    yield texts.NOT_LOOKED_FOR


def _of_shadows(report: PrivacyReport, _: Sequence[PrivacyReport]) -> Iterator[str]:
    yield texts.SHADOWS
    if readable(ShadowParameters, report) is not None:  # the report of a whole folder, not of one model
        yield texts.ALIKE_SHADOWS


def _of_replay(report: PrivacyReport, _: Sequence[PrivacyReport]) -> Iterator[str]:
    yield texts.POST_PROCESSING


def _of_account(report: PrivacyReport, _: Sequence[PrivacyReport]) -> Iterator[str]:
    yield from (texts.PLAN, forms.REAL_ARITHMETIC)
    if sum(artifact.role == "ledger" for artifact in report.inputs) > 1:
        yield texts.COUNTED_TOGETHER


#: For each step, the rule for the warnings of its report.
RULES: Mapping[str, Rule] = {
    "retrain": _of_training, "noise": _of_noise, "external-training": _of_external, "secrets-plan": _of_secrets_plan,
    "secrets-scan": _of_scan, "shadow": _of_shadows, "replay": _of_replay, "account": _of_account, "audit": of_audit,
}  # fmt: skip
