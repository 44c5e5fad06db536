"""Settings that an audit of secrets states, and that its request, its figures or its own limits contradict.

The figures of such an audit depend on how many values each secret was ranked among, and on what an attacker may do.
Standard library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import parameters_as
from verify.compare import compare, shown

#: What privctl writes about how each secret was ranked.
_SENTENCES = {
    "tokens": "a token any of whose characters is the value's counts",
    "made_candidates": "draws of the canary's format; else the book's candidates; else other values of the kind, then "
    "fresh ones of the shape, of as many tokens as the true value",
    "rank": "ties count against the attack",
}
#: The least and the largest whole number of each setting.
_WHOLE = {
    "candidates": (2, 100_000), "most_secrets": (1, math.inf), "eligible": (0, math.inf), "data_records": (0, math.inf),
    "queries": (1, math.inf),
}  # fmt: skip
_FOUND = re.compile(r"found in ([0-9]+) queries with probability ([0-9.e-]+), .+")
_RATES = ("secret reconstruction", "secret completion")
_TRAINED, _NEVER, _HELD_OUT = (
    "told first, trained", "told first, never drawn (control)", "told first, held out (control)",
)  # fmt: skip
_PLAN = "the plan that it names has"


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each setting of the attack on secrets that cannot be; none without such an attack."""
    settings = parameters.secrets
    if settings is None:
        return
    for name, (least, most) in _WHOLE.items():
        value = settings.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            yield f"its setting {name} of the attack on secrets is {shown(value)}, which no audit has"
            return
    probability = settings.get("probability")
    if not isinstance(probability, int | float) or not 0 < probability < 1:
        yield f"its setting probability of the attack on secrets is {shown(probability)}, which no audit has"
        return
    for name, sentence in _SENTENCES.items():
        if settings.get(name) != sentence:
            yield f"its setting {name} of the attack on secrets is {shown(settings.get(name))}, which no audit states"
    asked = parameters.asked
    if asked is not None:
        yield from compare("its beam for secrets", settings.get("beam"), asked.beam, "its request has")
    yield from _of_figures(report, settings)


def _of_figures(report: PrivacyReport, settings: Mapping[str, Any]) -> Iterator[str]:
    """The queries that a figure names, how many values secrets were ranked among, and how many were attacked."""
    counts = {}
    for item in report.evidence:
        if item.method not in _RATES:
            continue
        counts[item.quantity] = item.samples.get("secrets", 0)
        found = _FOUND.fullmatch(item.quantity)
        stated = f"{settings['queries']}", f"{settings['probability']:g}"
        if found is not None and found.groups() != stated:
            yield f"{item.method}, {item.quantity}: the settings say {stated[0]} queries and probability {stated[1]}"
        if item.details.get("median_candidates", 0) > settings["candidates"]:
            yield (
                f"{item.method}, {item.quantity}: secrets were ranked among {item.details['median_candidates']:g} "
                f"values, and the settings say {settings['candidates']} at most"
            )
    sides = [counts.get(side, 0) for side in (_TRAINED, _NEVER, _HELD_OUT)]
    for count, limit, word in (
        (sum(sides[:2]), settings["eligible"], "that could be attacked"),
        (max(sides), settings["most_secrets"], "of a kind to be attacked at most"),
    ):
        if count > limit:
            yield f"it attacked {count} secrets, and its settings say that there were {limit} {word}"


def audited_plan_disagreements(report: PrivacyReport, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields one sentence for each entry of an audit that disagrees with the ``facts`` of the plan that it tested."""
    settings = parameters_as(AuditParameters, report).secrets or {}
    for name in ("steps", "noise_multiplier"):
        yield from compare(f"its setting {name} of the attack on secrets", settings.get(name), facts.get(name), _PLAN)


def other_plans(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes an audit of secrets by a plan that the last training of the model, among ``parents``, did not follow."""
    tested = [artifact for artifact in report.inputs if artifact.role == "plan"]
    training = next((parent for parent in parents if parent.step == "retrain"), None)
    if report.step != "audit" or not tested or training is None:
        return
    followed = {artifact.digest for artifact in training.inputs if artifact.role == "plan"}
    for artifact in tested:
        if artifact.digest not in followed:
            reason = (
                f"it tests a plan, and the report of the model's training names {'another' if followed else 'none'}"
            )
            yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=reason)
