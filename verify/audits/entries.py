"""Whether an audit states figures, verdicts and files that audits have, each once, and verdicts on what it measured.

A figure by another name would be compared with nothing, and so would a second one: whoever looks for a figure takes the
first of its name. A verdict on something else would be believed without any evidence. Standard library only, like
``verify.audits.consistency``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from verify.audits.canaries.bounds import MECHANISM
from verify.audits.canaries.figures import COMPLETION, DISCLOSED, EXPOSURE, EXTRAPOLATED, MEAN, MEDIAN
from verify.audits.claim_sources import CLAIM
from verify.audits.extraction.alike_texts import ALIKE
from verify.audits.extraction.exact_tests import COST, DIVERGENCE, GRID, OVER_CONTROL, SEARCHES
from verify.audits.midpoint import METHOD as MIDPOINT
from verify.audits.parts_not_run import SECRET_METHODS
from verify.audits.ranks.bound import METHOD as RANK
from verify.audits.ranks.threshold import METHOD as THRESHOLD
from verify.audits.split.groups import is_about_claim
from verify.audits.terms import BASELINES, BEYOND, MEMBERSHIP, METHODS, NOISE, OVER_BLIND
from verify.audits.verdicts import EXTRACTION, MEMORIZED, NOT_EASIER, PLANNED, TRACELESS

_NUMBER = "[0-9.e+-]+"
_RATES = ("rate on training text", "rate on held-out text")
_ALIKE = f"(?:{re.escape(ALIKE)})?"
#: The quantities of an attack on membership.
_OF_ATTACKS = ("AUC", re.escape(OVER_BLIND), f"TPR at {_NUMBER} % FPR")
_OF_PROMPTS = (*map(re.escape, (*_RATES, COST)), *(re.escape(name) + _ALIKE for name in BEYOND))
#: For each method, its quantities as regular expressions.
_NAMES: Mapping[str, Collection[str]] = {
    **dict.fromkeys(BASELINES, _OF_ATTACKS),
    MIDPOINT: ("accuracy", "precision", "recall", "F1"),
    EXTRACTION: (
        *map(re.escape, _RATES),
        *(re.escape(name) + _ALIKE for name in (*BEYOND, GRID)),
        "rate on text in [0-9]+(?: document| to [0-9]+ documents| or more documents)",
        f"near-verbatim rate on (?:training|held-out) text, edit distance to {_NUMBER}",
        f"(?:training|held-out) text found in [0-9]+ queries with probability {_NUMBER}",
    ),
    **dict.fromkeys(SEARCHES, _OF_PROMPTS),
    DIVERGENCE: (*_OF_PROMPTS, re.escape(OVER_CONTROL)),
    EXPOSURE: (f"(?:{MEAN}|{MEDIAN}).+",),
    COMPLETION: (f"{DISCLOSED}.+",),
    EXTRAPOLATED: ("highest bits",),
    **dict.fromkeys(METHODS, ("(?:epsilon|mu).*",)),
    NOISE: ("noise multiplier",),
    **dict.fromkeys(
        (RANK, THRESHOLD),
        (
            f"epsilon lower bound at delta {_NUMBER}",
            "lower bound on mu of Gaussian differential privacy",
            f"p-value of the claim of epsilon {_NUMBER} at delta {_NUMBER}",
        ),
    ),
    **dict.fromkeys(SECRET_METHODS, (".+",)),
}
_BOUNDS, _AS_CLAIMED = (*METHODS, RANK, THRESHOLD), ", as claimed"
#: The roles of files whose coins give bounds, each with its own verdict on a claim or a mechanism.
_COINS = ("canaries", "split")


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each figure, verdict or file of its own, or that is stated more often than audits do."""
    yield from _figures(report, parameters)
    yield from _verdicts(report, parameters)
    if len(report.outputs) > 1 or any(artifact.role != "scores" for artifact in report.outputs):
        yield "it names other files that it wrote than one of scores"


def _figures(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    for (method, quantity), times in Counter((item.method, item.quantity) for item in report.evidence).items():
        if times > 1:
            yield f"{method}, {quantity}: it is stated {times} times"
    attacks = {name: _OF_ATTACKS for name in parameters.attack if name not in _NAMES}
    stated = () if parameters.asked is None else parameters.asked.secret_figures
    for item in report.evidence:
        patterns = {**_NAMES, **attacks}.get(item.method, ())
        if not any(re.fullmatch(pattern, item.quantity) for pattern in patterns):
            yield f"{item.method}, {item.quantity}: no audit measures anything of that name"
        elif item.method in SECRET_METHODS and stated and f"{item.method}: {item.quantity}" not in stated:
            yield f"{item.method}, {item.quantity}: it is not among the figures that this audit says it measured"


def _verdicts(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    asked = parameters.asked
    if asked is None:
        return  # reported by another check
    methods = {item.method for item in report.evidence}
    measured = {
        MEMBERSHIP: not methods.isdisjoint(parameters.attack),
        MEMORIZED: not methods.isdisjoint((EXTRACTION, *SEARCHES)),
        TRACELESS: EXPOSURE in methods,
        NOT_EASIER: "secrets" in asked.files,
    }
    for subject, times in Counter(verdict.subject for verdict in report.verdicts).items():
        most = 1
        if subject.startswith(PLANNED):
            known = {"secrets", "plan"} <= asked.files.keys()
        elif subject.startswith("(") and (CLAIM in subject or MECHANISM in subject):
            known, most = not methods.isdisjoint(_BOUNDS), sum(role in asked.files for role in _COINS) or 1
        else:
            known = measured.get(subject, False)
        if not known:
            yield f"its verdict on {subject!r} is on something that it did not measure"
        elif subject.endswith(_AS_CLAIMED) and not any(is_about_claim(subject, *claim) for claim in asked.claims):
            yield f"its verdict on {subject!r} is on a claim that it was not asked about"
        elif times > most:
            yield f"its verdict on {subject!r} is stated {times} times"
