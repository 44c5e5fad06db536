"""Texts that an extraction audit leaves out because a reference model produces them too: counts, and which model.

The reference model is not run again. Standard library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privctl.domain.evidence import Evidence
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as
from privctl.storage.folder import BASE_ROLE
from verify.audits.parts_not_run import EXTRACTION, not_run
from verify.laws.counts import fisher

_KNOWN, _SIDES = ("known_training", "known_held_out"), ("training", "held_out")
_BEYOND = ("rate beyond held-out text", "near-verbatim rate beyond held-out text")
_RATES = ("rate on training text", "rate on held-out text")
#: The settings on the reference model, and the value that names it as the training's initial model.
_RULE = ("reference", "reference_tokens", "reference_distance")
_BEGAN = "what the training began with"
#: Attacks that look at equal numbers of texts of both sides, unless privctl drew the sides.
_EQUAL = ("prompts from a file", "divergence", "divergence control")
#: The p-value at which the reference model is suspected to have been trained on the training text.
_UNLIKELY = 0.05
_WEIGHTS = ".safetensors"


def faults(report: PrivacyReport, parameters: AuditParameters, *, by_coins: bool) -> Iterator[str]:
    """Yields one sentence per contradiction in the counts of texts known from elsewhere."""
    asked = parameters.asked is not None and parameters.asked.reference
    settings = parameters.extraction or {}
    if asked and not any(item.role == "reference model" for item in report.inputs):
        yield "it was asked what a reference model gives too, and its inputs name none"
    run = EXTRACTION not in not_run(report)
    if missing := [name for name in _RULE if run and (name in settings) is not asked]:
        yield f"extraction: {missing[0]!r} is stated if and only if there is a reference model"
    exact: dict[str, list[float]] = {}
    for item in report.evidence:
        if item.quantity not in _BEYOND:
            continue
        wrong = _rate_fault(item, asked=asked)
        if not wrong and asked:
            known = [item.details[name] for name in _KNOWN]
            if exact.setdefault(item.method, known) != known:
                wrong = "it leaves out other numbers of texts known from elsewhere than another figure"
            wrong = wrong or _more_than_there_are(item, report.evidence, by_coins=by_coins)
        if wrong:
            yield f"{item.method}, {item.quantity}: {wrong}"


def _rate_fault(item: Evidence, *, asked: bool) -> str:
    stated = [item.details[name] for name in _KNOWN if name in item.details]
    if not asked:
        return "it leaves out texts that a reference model gives, and there was none" if stated else ""
    if len(stated) < len(_KNOWN):
        return "it does not say how many texts it leaves out as known from elsewhere"
    if not all(count >= 0 and count == int(count) for count in stated):
        return "what it counts as known from elsewhere is no number of texts"
    return ""


def _more_than_there_are(item: Evidence, evidence: Sequence[Evidence], *, by_coins: bool) -> str:
    """What is wrong with the numbers of texts; not checked if coins were drawn for groups, which are then counted."""
    if by_coins:
        return ""
    looked = [
        item.details.get(f"{side}_texts", 0) + item.details[name] for side, name in zip(_SIDES, _KNOWN, strict=True)
    ]
    texts = {other.quantity: other.details.get("texts", 0) for other in evidence if other.method == item.method}
    if any(count > texts.get(rate, count) for count, rate in zip(looked, _RATES, strict=True)):
        return "it compares and leaves out more texts than it looked at"
    if item.method in _EQUAL and looked[0] != looked[1]:
        return f"it looked at {looked[0]:g} and {looked[1]:g} texts, and such a search takes as many of each"
    return ""


def compares_nothing(item: Evidence) -> bool:
    """Whether ``item`` compares nothing because all texts of one side are known from elsewhere."""
    compared = [item.details.get(f"{side}_texts") for side in _SIDES]
    left_out = [item.details.get(name, 0) for name in _KNOWN]
    none_left = any(texts == 0 and known > 0 for texts, known in zip(compared, left_out, strict=True))
    return none_left and item.estimate is None and "p_value" not in item.details and bool(item.reason)


def reference_is_suspect(details: Mapping[str, float]) -> bool:
    """Whether the reference model produces so much more training text that it may have been trained on it."""
    if _KNOWN[0] not in details:
        return False
    (ours, theirs), (texts, others) = (
        [int(details.get(name, 0)) for name in names] for names in (_KNOWN, tuple(f"{side}_texts" for side in _SIDES))
    )
    return fisher(ours, ours + texts, theirs, theirs + others) <= _UNLIKELY


def check_reference(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes the statement that the training started from the reference model if the training's report disagrees."""
    if report.step != "audit" or _stated_settings(report).get("reference") != _BEGAN:
        return
    weights = _weights(report.inputs, "reference model", f"reference {BASE_ROLE}")
    trainings = [parent for parent in parents if parent.step == "retrain"]
    if trainings and not any(
        weights and weights == _weights(training.inputs, "start-", BASE_ROLE) for training in trainings
    ):
        yield Verdict(
            subject="audit",
            outcome=Outcome.REFUTED,
            reason="it says that the training began with the reference model, and the training's report names other "
            "weights",
        )


def _stated_settings(report: PrivacyReport) -> Mapping[str, Any]:
    try:
        return parameters_as(AuditParameters, report).extraction or {}
    except ParametersError:
        return {}  # reported by another check


def _weights(inputs: Sequence[Artifact], *begins: str) -> set[str]:
    return {
        item.digest
        for item in inputs
        if item.role.startswith(begins) and (item.role.endswith(_WEIGHTS) or item.role == "reference model")
    }
