"""Whether an audit of canaries states the conditions of its bounds, each in the form and state that audits give it.

Whoever reads a bound relies on them. No program can enforce or check some: that the coins of a training were fair is
its program's word.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as
from privctl.storage.digest import NamedFiles
from verify.audits.terms import MAHLOUJIFAR, METHODS, of_split
from verify.compare import compare
from verify.files.places import located

_ASSERTED, _CHECKED, _VIOLATED = AssumptionState.ASSERTED, AssumptionState.CHECKED, AssumptionState.VIOLATED
_COINS, _NUMBER, _TRAINED, _COMMITMENT = (
    "independent coins", "number included", "trained on the planted data", "commitment",
)  # fmt: skip
#: How the file ends that a training of canary gradients leaves beside its model's folder, and a file's digest.
_FILE, _DIGEST = ".gradient-canaries.json", re.compile(r"blake3:[0-9a-f]{64}")
#: For each condition the states that it may have, each with the pattern of its statement.
_Forms = dict[str, dict[AssumptionState, str]]
#: Bounds that hold even for a draw of exactly half of the canaries. Earlier versions had none; a gate refuses those.
_EITHER_WAY = r"exactly \d+ of (\d+) canaries are included; the bounds hold even if that number was fixed"
_FAIR = r"(\d+) of (\d+) canaries are included, which fair coins give"
#: With this many canaries or more, exactly half must be stated as such.
_FEWEST_SUSPECT = 40
_INCLUDED = {
    _CHECKED: f"{_FAIR}|{_EITHER_WAY}",
    _ASSERTED: r"exactly \d+ of \d+ canaries are included, each by a coin of its own: a draw of a fixed number gives "
    "that too, and for it the bounds have no proof; an odd number of canaries rules it out",
    _VIOLATED: r"\d+ of \d+ canaries are included, which fair coins give less than once in a million times",
}
_NAMED = "the model's training report names this file of canary gradients, by digest"
_OF_GRADIENTS: _Forms = {
    _COINS: {_ASSERTED: "the training included each canary gradient by a fair coin of its own"},
    _NUMBER: _INCLUDED,
    _TRAINED: {
        _ASSERTED: "the observations are those of this model's training",
        _CHECKED: _NAMED,
        _VIOLATED: "the model's training report names another file of canary gradients"
        "|the model's own report is of no training with canary gradients",
    },
}
_OF_PLANTED: _Forms = {
    _COMMITMENT: {
        _ASSERTED: "the manifest is the one written before training; give the published commitment to have it checked",
        _CHECKED: "the manifest is the one that the given commitment stands for",
        _VIOLATED: "the manifest is not the one that the given commitment stands for"
        "|the manifest was changed after it was committed to: its content does not give its commitment",
    },
    _COINS: {
        _ASSERTED: "each canary was included by a fair coin of its own, from the operating system, as the manifest "
        "says",
        _VIOLATED: "the coins come from a given seed, so whoever knows it can tell them without the model",
    },
    _NUMBER: _INCLUDED,
    "distinct canaries": {
        _CHECKED: "no two canaries share a secret",
        _VIOLATED: r"(1 canary repeats|\d+ canaries repeat) the secret of another, so that one secret hangs on two "
        "coins",
    },
    _TRAINED: {
        _ASSERTED: "the model was trained on the planted data, every copy a record of its own",
        _CHECKED: "the model's training report names the planted data, by digest",
        _VIOLATED: "the model's training report names other data than the planted ones",
    },
}
#: Those of the planted data, if an audit had them.
_OF_DATA: _Forms = {
    "planted data": {
        _CHECKED: "the file is the one that was planted, byte for byte",
        _VIOLATED: "the file has other bytes than the one that was planted",
    },
    "copies": {
        _CHECKED: "every included canary is there in exactly its number of copies",
        _VIOLATED: r"\d+ included canaries are there in another number of copies than the manifest says",
    },
    "source": {
        _CHECKED: "without the canaries the file is the source, byte for byte",
        _VIOLATED: "without the canaries the file is not the source that the manifest names",
    },
    "secrets": {
        _CHECKED: "no secret occurs anywhere but in its own copies, and none of a canary that was left out",
        _VIOLATED: r"(1 secret occurs|\d+ secrets occur) elsewhere in the data, or in another number than was planted",
    },
}
#: The epsilon that follows from mu is rounded down to a billionth.
_ROUNDED = 2e-9


def misstated_conditions(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each condition, or delta of a bound from canaries, that no audit states so."""
    bounds = [i for i in report.evidence if i.method in METHODS and not of_split(i, parameters)]
    stated = parameters.canary_conditions
    if stated is None:
        if bounds:
            yield "it bounds epsilon by canaries, and states no conditions of that"
        return
    planted = parameters.canary_commitment is not None
    yield from _misstated(stated, *((_OF_PLANTED, _OF_DATA) if planted else (_OF_GRADIENTS, {})))
    deltas = [item.details.get("delta", 0.0) for item in bounds]
    delta = max(deltas, default=0.0) if parameters.canary_delta is None else parameters.canary_delta
    for item, own in zip(bounds, deltas, strict=True):
        yield from compare(f"the delta of {item.quantity}", own, delta, "that of its canaries is")
        if wrong := _if_gaussian(item):
            yield f"{item.method}, {item.quantity}: {wrong}"


def _misstated(stated: Sequence[Assumption], needed: _Forms, others: _Forms) -> Iterator[str]:
    names = [condition.name for condition in stated]
    for name in needed:
        if name not in names:
            yield f"it does not state the condition {name!r} of its bounds"
    for condition in stated:
        forms = {**needed, **others}.get(condition.name)
        form = None if forms is None else forms.get(condition.state)
        if names.count(condition.name) > 1:
            yield f"it states the condition {condition.name!r} {names.count(condition.name)} times"
        elif forms is None:
            yield f"no bound by canaries has a condition {condition.name!r}"
        elif form is None:
            yield f"the condition {condition.name!r} is said to be {condition.state}, which no audit finds of it"
        elif not re.fullmatch(form, condition.statement):
            yield f"the condition {condition.name!r} says {condition.statement!r}, which is not what an audit finds so"
        elif wrong := _half_passed_over(condition):
            yield wrong


def share_for_exactly_half(stated: Sequence[Assumption] | None) -> float:
    """The share of the failure probability left to bounds that are said to hold even if half was a fixed number.

    It is the probability that fair coins include half. By the logarithms of factorials, which differ from it by a
    billionth of it at most.
    """
    for condition in stated or ():
        if condition.name == _NUMBER and (match := re.fullmatch(_EITHER_WAY, condition.statement)):
            count = int(match[1])
            return math.exp(math.lgamma(count + 1) - 2 * math.lgamma(count / 2 + 1) - count * math.log(2))
    return 1.0


def _half_passed_over(condition: Assumption) -> str:
    """What is wrong with a condition that calls exactly half a usual number."""
    match = re.fullmatch(_FAIR, condition.statement) if condition.name == _NUMBER else None
    if match is None or 2 * int(match[1]) != int(match[2]) or int(match[2]) < _FEWEST_SUSPECT:
        return ""
    return f"the condition {_NUMBER!r} does not say that {match[1]} of {match[2]} canaries are exactly half"


def _if_gaussian(item: Evidence) -> str:
    """What is wrong with the epsilon that follows if the mechanism is Gaussian of the mu that was found."""
    epsilon, mu = item.details.get("epsilon_if_gaussian"), item.lower
    if item.method != MAHLOUJIFAR or epsilon is None or mu is None:
        return ""
    delta = item.details["delta"]
    near = (epsilon - _ROUNDED, epsilon + _ROUNDED)
    above, below = (mu > 0 and end > 0 and _delta(end, mu) > delta for end in near)
    at_start = epsilon == 0 and (mu == 0 or _delta(_ROUNDED, mu) <= delta)
    return "" if at_start or (above and not below) else f"its epsilon_if_gaussian is not that of mu {mu:.6g}"


def _delta(epsilon: float, mu: float) -> float:
    """The delta of mu-GDP at ``epsilon`` (Dong, Roth and Su 2019, corollary 1)."""
    near, far = (math.erfc((epsilon / mu + side * mu / 2) / math.sqrt(2)) / 2 for side in (-1, 1))
    return near - math.exp(min(epsilon, 700.0)) * far


def check_named(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes an audit that says the training names its file of canary gradients, if the training's report does not."""
    with suppress(ParametersError):  # reported by a check
        stated = parameters_as(AuditParameters, report).canary_conditions if report.step == "audit" else None
        if _NAMED not in {condition.statement for condition in stated or ()}:
            return
        read = {artifact.digest for artifact in report.inputs if artifact.role == "canaries"}
        trainings = [parameters_as(TrainingParameters, parent) for parent in parents if parent.step == "retrain"]
        named = {training.gradient_canaries_file for training in trainings}
        if not report.parents or (trainings and not read & named):
            reason = "it says that the model's training report names its file of canary gradients, and none names it"
            yield Verdict(subject="audit", outcome=Outcome.REFUTED, reason=reason)


def check_canary_file(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes a training's digest of its file of canary gradients that is none, or is of another file than lies there.

    Audits find the file that a training left by this digest.
    """
    with suppress(ParametersError):  # reported by a check
        named = parameters_as(TrainingParameters, report).gradient_canaries_file if report.step == "retrain" else None
        if named is None:
            return
        models = [located(path, artifact.path).parent for artifact in report.outputs if artifact.role == "model"]
        places = [place for model in models if os.path.isfile(place := model.with_name(model.name + _FILE))]
        found = [_digest_of(place) for place in places]
        if not _DIGEST.fullmatch(named) or (found and named not in found):
            reason = "its gradient_canaries_file is not the digest of the file of canary gradients beside its model"
            yield Verdict(subject="parameters", outcome=Outcome.REFUTED, reason=reason)


def _digest_of(place: Path) -> str | None:
    try:
        return NamedFiles().digest(place)
    except PrivctlError:
        return None
