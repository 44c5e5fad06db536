"""What a verification concludes, as one sentence for readers who do not read tables."""

from __future__ import annotations

from collections.abc import Sequence

from privctl.domain.guarantee import AssumptionState, Guarantee, Status
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.text.guarantee import amount

VERIFIED, UNDECIDED, REFUTED = "Verified", "Undecided", "Do not rely on this report"


def verification_sentence(verdicts: Sequence[Verdict], guarantees: Sequence[Guarantee]) -> str:
    """What was checked, and whether the privacy guarantees hold.

    ``verdicts`` are those of the verification, ``guarantees`` those of the report that was verified. The sentence
    begins with ``VERIFIED``, ``UNDECIDED`` or ``REFUTED`` and a colon; ``privctl verify`` then exits with 0, 3 or 1.
    """
    decisive = [verdict for verdict in verdicts if verdict.decisive]
    checks = [verdict.outcome for verdict in decisive if verdict.status is None]
    claims = [verdict.outcome for verdict in decisive if verdict.status is not None]
    holding = (Status.PROVED, Status.CONDITIONAL)
    stated = [guarantee for guarantee in guarantees if guarantee.status in holding and guarantee.epsilon is not None]
    for beginning, outcome, check, claim in (
        (f"{REFUTED}:", Outcome.REFUTED, "failed", "wrong"),
        (f"{UNDECIDED}: no error was found, but", Outcome.INCONCLUSIVE, "could not be completed", "not confirmed"),
    ):
        wrong = [
            _some_checks_text(checks.count(outcome), checks, check),
            _bounds(claims.count(outcome), claims, stated, claim),
        ]
        if any(wrong):
            return f"{beginning} {' and '.join(filter(None, wrong))}."
    passed = _all_checks_text(checks)
    if not guarantees:
        return f"{VERIFIED}: {passed}; the report states no privacy guarantee."
    if not stated:
        return f"{VERIFIED}: {passed}, but the report states no privacy guarantee that anyone can rely on."
    what = _names_text(stated)
    if not claims:
        return f"{VERIFIED}: {passed}, but {what} {_verb(stated, 'was', 'were')} not recomputed."
    # What claims no finite epsilon, and what was only simulated, is CONSISTENT besides.
    if claims.count(Outcome.PROVED) < len(stated):
        return f"{VERIFIED}: {passed}, and nothing contradicts {what}."
    asserted = any(a.state is AssumptionState.ASSERTED for guarantee in stated for a in guarantee.assumptions)
    condition = ", if the assumptions that nobody checked are true" if asserted else ""
    holds = _verb(stated, "holds", "hold")
    false = sum(verdict.outcome is Outcome.REFUTED for verdict in verdicts if not verdict.decisive)
    claimed = counted(false, "bound that it marks as only claimed is", "bounds that it marks as only claimed are")
    besides = f"; {claimed} false" if false else ""
    return f"{VERIFIED}: {passed}, and {what} {holds} for the run that the report describes{condition}{besides}."


def _all_checks_text(checks: Sequence[Outcome]) -> str:
    if not checks:
        return "no error was found in the report"
    which = "the one check" if len(checks) == 1 else f"all {len(checks)} checks"
    return f"{which} of the report and its files passed"


def _some_checks_text(count: int, checks: Sequence[Outcome], what: str) -> str:
    return f"{count} of {counted(len(checks), 'check')} of the report and its files {what}" if count else ""


def _bounds(count: int, claims: Sequence[Outcome], stated: Sequence[Guarantee], what: str) -> str:
    """The guarantees with an outcome: the one that there is, or how many of all; empty if there are none."""
    if not count:
        return ""
    if len(stated) == 1:
        return f"{_names_text(stated)} is {what}"
    return f"{count} of {counted(len(claims), 'privacy guarantee')} {'is' if count == 1 else 'are'} {what}"


def _names_text(stated: Sequence[Guarantee]) -> str:
    if len(stated) == 1:
        return f"the privacy guarantee ({amount(stated[0])})"
    return f"the {len(stated)} privacy guarantees"


def _verb(stated: Sequence[Guarantee], one: str, several: str) -> str:
    return one if len(stated) == 1 else several
