"""Verdicts on the secrets: whether training made them easier to identify, and whether a plan's bounds hold."""

from __future__ import annotations

from collections.abc import Sequence

from audits.secrets.blind import BASELINE, doubt
from audits.secrets.evidence import PROTECTION, RECONSTRUCTION, SHARE_FOUND, TRACE
from audits.secrets.planned_bound import Markov
from audits.secrets.trace import CONTROLLED, DESIGNED, FEWEST, HELD_OUT, PAIRED
from privctl.domain.evidence import Evidence
from privctl.domain.verdict import Outcome, Verdict

TRACELESS = "training made no secret easier to tell"
#: With fewer secrets on either side of the comparison, finding nothing is inconclusive.
_ENOUGH = 100
#: If a test could not have detected this fraction of recovered secrets, not rejecting is inconclusive.
_GROSS = 0.5
_ALTERNATIVE = {
    DESIGNED: "",
    CONTROLLED: "; which ones the plan left out is taken for chance within their kind",
    HELD_OUT: "",
    PAIRED: "; whether from their own records or from others of their kind, only secrets never trained on could tell",
}

#: Rates that exist only with a control.
_CONTROLS = tuple(
    f"told first, {control}" for control in ("trained, before training", "never drawn (control)", "held out (control)")
)
#: The controls of a beam search, in words.
_BEAM = {
    DESIGNED: "of other draws of the same format",
    CONTROLLED: "of those never drawn",
    HELD_OUT: "of held-out ones",
}


def trace(evidence: Sequence[Evidence]) -> Verdict:
    """Judge by the tests; without tests, natural values may rank first even if never seen."""
    rate_summary = _rate_summary(evidence)
    tests = [item for item in evidence if item.method == TRACE]

    def verdict(outcome: Outcome, reason: str) -> Verdict:
        return Verdict(subject=TRACELESS, outcome=outcome, reason=f"{rate_summary}; {reason}")

    if not tests and any(item.quantity in _CONTROLS for item in evidence if item.method == RECONSTRUCTION):
        return verdict(
            Outcome.INCONCLUSIVE,
            f"fewer than {FEWEST} secrets can be compared with a control, too few for a test; give more secrets",
        )
    if not tests:
        return verdict(
            Outcome.INCONCLUSIVE,
            "confounded: there is no control, and values may rank first without having been seen; give "
            "--held-out-secrets, scanned from records that it was not trained on, --base, the model before training, a "
            "--plan that leaves secrets out, or secrets drawn at random by --canaries",
        )
    detected_tests = [item for item in tests if item.details["detected"]]
    blind = tuple(item for item in evidence if item.method == BASELINE)
    doubts = [doubt(blind, _score(item)) if _name(item) == HELD_OUT else "" for item in detected_tests]
    detected = [item for item, why in zip(detected_tests, doubts, strict=True) if not why]
    if detected_tests and not detected:
        return verdict(
            Outcome.INCONCLUSIVE,
            f"confounded: {doubts[0]}; give --base, the model before training, or draw the files by privctl audit "
            "split before the next one",
        )
    if detected:
        best = min(detected, key=lambda item: item.details["p_value"])
        name = _name(best)
        p_value = f"(p = {best.details['p_value']:.2g}){_ALTERNATIVE[name]}"
        share = f"{100 * (best.estimate or 0):.3g} percentage points more of them"
        if best.quantity.startswith(SHARE_FOUND):
            return verdict(Outcome.REFUTED, f"a beam search holds {share} than {_BEAM[name]} {p_value}")
        difference = share if name == PAIRED else f"{best.estimate:.2f} bits more"
        return verdict(Outcome.REFUTED, f"{difference} than {_against_text(name)} {p_value}")
    able = [item for item in tests if item.details.get("least_p_value", 0.0) <= item.details["level"]]
    if not able:
        return verdict(
            Outcome.INCONCLUSIVE,
            "no test found more than chance gives, but with so few secrets and candidates it would not have if all "
            "ranked first; give more --candidates, or more secrets",
        )
    sizes = [min(n for n in item.samples.values() if n) for item in able]
    if max(sizes) >= _ENOUGH:
        return verdict(Outcome.CONSISTENT, "no test found more than chance gives")
    return verdict(
        Outcome.INCONCLUSIVE,
        f"no test found more than chance gives, with {max(sizes)} secrets to compare, where {_ENOUGH} are wanted",
    )


def protection(subject: str, test: Markov | None, evidence: Sequence[Evidence], broken: str) -> Verdict:
    """Judge a plan's bounds by secrets with values drawn at random; ``broken`` says why that is not possible."""

    def verdict(outcome: Outcome, reason: str) -> Verdict:
        return Verdict(subject=subject, outcome=outcome, reason=reason)

    if broken:
        return verdict(Outcome.INCONCLUSIVE, broken)
    if test is None:
        return verdict(
            Outcome.INCONCLUSIVE,
            f"{_rate_summary(evidence)}, but the bounds are about values drawn at random among the candidates, and "
            "nobody drew these; plant canaries (privctl canary plant), plan with them in the book, and give --canaries",
        )
    (item,) = [item for item in evidence if item.method == PROTECTION]
    observed = (
        f"{test.recovered} of {test.secrets} secrets drawn at random rank first, where the bounds allow "
        f"{test.expected:.3g} on average"
    )
    if item.details["detected"]:
        return verdict(
            Outcome.REFUTED,
            f"{observed}; {test.recovered} or more have a probability of at most {test.p_value:.2g} (Markov's "
            "inequality, whatever the dependence)",
        )
    if test.needed > test.secrets:
        return verdict(
            Outcome.INCONCLUSIVE,
            f"{observed}; not even first ranks for all of them would have contradicted that with "
            f"{100 * item.confidence:.4g} % confidence, as the bounds are too loose for one run",
        )
    certainty = f"{100 * item.confidence:.4g} % confidence"
    requirement = f"{test.needed} first ranks would have contradicted that with {certainty}"
    outcome = Outcome.CONSISTENT if test.needed <= _GROSS * test.secrets else Outcome.INCONCLUSIVE
    return verdict(outcome, f"{observed}; {requirement}, and fewer cannot in one run")


def _rate_summary(evidence: Sequence[Evidence]) -> str:
    """The observed rates, for the verdict's reason."""
    phrases = []
    for name in ("trained", "trained, before training", "never drawn (control)", "held out (control)"):
        for item in evidence:
            if item.method == RECONSTRUCTION and item.quantity == f"told first, {name}":
                lead = "secrets trained on rank first" if name == "trained" else _LABELS[name]
                phrases.append(f"{item.details['told']:.0f} of {item.samples['secrets']} {lead}")
    return ", ".join(phrases) or "no secret trained on could be attacked"


_LABELS = {
    "trained, before training": "before training",
    "never drawn (control)": "of those never drawn",
    "held out (control)": "of held-out ones",
}


def _name(item: Evidence) -> str:
    return next(name for name in (DESIGNED, CONTROLLED, HELD_OUT, PAIRED) if f", {name}, " in item.quantity)


def _score(item: Evidence) -> str:
    return item.quantity.split(", by ", 1)[1]


def _against_text(name: str) -> str:
    return {
        DESIGNED: "values drawn at random, had it not seen them, would have",
        CONTROLLED: "those never drawn",
        HELD_OUT: "held-out ones",
        PAIRED: "before training",
    }[name]
