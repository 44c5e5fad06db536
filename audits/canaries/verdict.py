"""Verdicts on the canaries: whether they left a trace, and whether claims about epsilon hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import ndtri

from audits.canaries.bounds import EITHER, counts_of
from audits.canaries.conditions import violated_conditions
from audits.canaries.evidence import COMPLETION, EXPOSURE
from audits.canaries.stated_noise import are_independent, test_of, too_little_noise
from audits.claims import VIOLATION, CurveClaim, EpsilonClaim, curve_subject, subject_of
from audits.statistics import f_dp
from audits.statistics.power import POWER, one_run_chance, one_run_detectable, one_run_detectable_gaussian
from audits.statistics.several_guesses import GuessCount, ceiling, curve_p_value, epsilon_bound, rejects_claim
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Assumption
from privctl.domain.verdict import Outcome, Verdict

TRACELESS = "planted canaries left no trace"
#: With fewer included canaries, finding no trace is inconclusive.
_ENOUGH = 100
#: This many canaries, each with its own references, detect a mean of one bit above chance with probability 0.8 at level
#: 0.002, if exposures are exponential.
_EFFECTIVE = 46
_MORE = "plant more (privctl canary plant"


def trace(evidence: Sequence[Evidence], conditions: Sequence[Assumption] = ()) -> Verdict:
    """Judge by the two leak tests, with the one on left-out canaries as the control, and by completions."""
    tests = {item.quantity: item for item in evidence if item.method == EXPOSURE and "detected" in item.details}
    included, control = (
        next(item for name, item in tests.items() if word in name) for word in ("included", "left out")
    )
    completed = [
        item
        for item in evidence
        if item.method == COMPLETION and "included" in item.quantity and item.details["disclosed"]
    ]
    completions = "".join(
        f"; the model completes {item.details['disclosed']:.0f} of {item.samples['canaries']} {item.quantity[11:]}"
        for item in completed
    )
    broken = "; ".join(condition.statement for condition in violated_conditions(conditions))
    if broken:
        return Verdict(subject=TRACELESS, outcome=Outcome.INCONCLUSIVE, reason=f"{broken}{completions}")
    if control.details["detected"]:
        return Verdict(
            subject=TRACELESS,
            outcome=Outcome.INCONCLUSIVE,
            reason="canaries that were left out look memorized as well, so the comparison is off; check that the "
            f"manifest belongs to this training run{completions}",
        )
    if included.details["detected"]:
        return Verdict(
            subject=TRACELESS,
            outcome=Outcome.REFUTED,
            reason=f"mean exposure {included.estimate:.2f} bits, where {included.details['without_memorization']:.2f} "
            f"means nothing (p = {included.details['p_value']:.2g}){completions}",
        )
    count = included.samples["canaries"]
    highest = min(
        item.details.get("p_value_of_max", 1.0)
        for item in evidence
        if item.quantity.startswith("median bits, included")
    )
    if highest <= included.details["level"]:
        return Verdict(
            subject=TRACELESS,
            outcome=Outcome.INCONCLUSIVE,
            reason="included canaries look like others on average, but one of them stands out "
            f"(p = {highest:.2g} for the highest exposure of its side){completions}",
        )
    if count >= _ENOUGH and included.details["effective"] >= _EFFECTIVE and not completions:
        return Verdict(
            subject=TRACELESS,
            outcome=Outcome.CONSISTENT,
            reason=f"{count} included canaries have no more exposure than chance gives",
        )
    effective = included.details["effective"]
    few = [f"of {_ENOUGH} included canaries that are needed there are {count}"] * (count < _ENOUGH)
    if effective < _EFFECTIVE:
        few.append(
            f"as they share their references, they tell as much as {effective:.0f} with references of their own, where "
            f"{_EFFECTIVE} are needed"
        )
    return Verdict(
        subject=TRACELESS,
        outcome=Outcome.INCONCLUSIVE,
        reason=f"no test found a trace{', but ' * bool(few)}{', and '.join(few)}{completions}",
    )


def claims(evidence: Sequence[Evidence], claimed: Sequence[EpsilonClaim], *, more: str = _MORE) -> list[Verdict]:
    """Whether each claim is compatible with the one-run bound for single records.

    ``more`` says what to do if there are too few canaries for a claim, and names the command that says how many are
    needed.
    """
    bounds = [item for item in evidence if item.method == EITHER and item.details["copies"] == 1]
    return [_claim(claim, _deciding(bounds), more) for claim in claimed]


def _deciding(bounds: Sequence[Evidence]) -> Evidence | None:
    """The bound that decides about claims: the highest of the observations, which share the failure probability."""
    return max(bounds, key=lambda item: -1.0 if item.lower is None else item.lower, default=None)


def curves(
    evidence: Sequence[Evidence],
    curve: CurveClaim | None,
    noise: Sequence[Evidence] = (),
    *,
    own_coordinates: bool = False,
) -> list[Verdict]:
    """Whether the guesses are compatible with the stated mechanism's trade-off curve; empty without a curve.

    The guesses are those of the epsilon bounds. If mechanism and claims are true, all are rejected by too many correct
    guesses, so the verdicts jointly fail no more often than the one with the lowest threshold. Several observations of
    one training share the failure probability by their evidence. ``noise`` is the bound on the noise by the same
    guesses, if any: if it is no more than stated, the mechanism is also refuted. ``own_coordinates`` as for that bound.
    """
    bounds = [item for item in evidence if item.method == EITHER and item.details["copies"] == 1]
    if curve is None or not bounds or bounds[0].lower is None:
        return []
    least = f_dp.lines(curve.points)
    tests = [(curve_p_value(list(counts_of(item)), least), 1 - item.confidence) for item in bounds]
    p_value, level = min(tests, key=lambda test: test[0] / test[1])
    subject = curve_subject(curve)
    less = too_little_noise(noise)
    if p_value < level or less:
        under = (
            f"have a chance of {p_value:.2g} at most under its trade-off curve (level {level:.2g})"
            if p_value < level
            else "are too many for its steps, in which what shows of a canary is independent of the others"
        )
        return [
            Verdict(
                subject=subject,
                outcome=Outcome.REFUTED,
                reason="the training was not by the mechanism that the report states: so many right guesses "
                f"{under}; a curve is refuted here, and no single epsilon{less and '; ' + less}",
            )
        ]
    bounded = curve.family is not None and bounds[0].details["delta"] > 0
    independent = own_coordinates and bounded and are_independent(curve)
    chance = max(
        power_at_half_noise(list(counts_of(item)), curve, 1 - item.confidence, independent=independent)
        for item in bounds
    )
    return [
        Verdict(
            subject=subject,
            outcome=Outcome.CONSISTENT if chance >= POWER else Outcome.INCONCLUSIVE,
            reason=f"the guesses do not refute its trade-off curve (p = {p_value:.2g}, level {level:.2g}); if there "
            "had been half of the noise, the strongest attack would have refuted it with a probability of about "
            f"{chance:.2g}",
        )
    ]


def power_at_half_noise(
    sets: Sequence[GuessCount], curve: CurveClaim, alpha: float, *, independent: bool = False
) -> float:
    """The probability of detecting half of the noise, as for a Gaussian mechanism of equal advantage; 0 if unknown.

    ``independent`` says that a bound on the noise is also tested, for independent canaries. The advantage is delta at
    epsilon 0, which is 2 Phi(mu / 2) - 1 for a Gaussian mechanism.
    """
    if not curve.half:
        return 0.0
    mu = 2 * float(ndtri((1 + min(curve.half[0][1], 1 - 1e-9)) / 2))
    test, level = test_of(independent=independent), alpha / len(sets)

    def chance(counted: GuessCount) -> float:
        sizes = counted.canaries, counted.guesses
        return one_run_chance(*sizes, lambda right: test((*sizes, right), curve.points, level), mu)

    return max(map(chance, sets))


def _claim(claim: EpsilonClaim, bound: Evidence | None, more: str) -> Verdict:
    subject = subject_of(claim)

    def inconclusive(reason: str) -> Verdict:
        return Verdict(subject=subject, outcome=Outcome.INCONCLUSIVE, reason=reason)

    if bound is None:
        return inconclusive("no set of guesses speaks of canaries with one copy; plant some with --copies 1")
    if bound.lower is None:
        return inconclusive(bound.reason)
    if not (0 <= claim.epsilon < math.inf and 0 <= claim.delta < 1):
        return inconclusive("this is no claim that data could contradict")
    sets, alpha = list(counts_of(bound)), 1 - bound.confidence
    if rejects_claim(sets, claim.epsilon, claim.delta, alpha):
        least, _ = epsilon_bound(sets, claim.delta, alpha)
        return Verdict(
            subject=subject,
            outcome=Outcome.REFUTED,
            reason=f"epsilon is at least {least:.3f} at delta {claim.delta:g}, with {100 * bound.confidence:.4g} % "
            "confidence",
        )
    response, gaussian = _detectable(sets, claim, alpha)
    detectable = response if math.isnan(gaussian) else max(response, gaussian)
    finding = f"epsilon is at least {bound.lower:.3f} at delta {bound.details['delta']:g}"
    if detectable <= VIOLATION * claim.epsilon:
        return Verdict(
            subject=subject,
            outcome=Outcome.CONSISTENT,
            reason=f"{finding}; a true epsilon of {detectable:.2f} would have been noticed "
            "four times in five, if the attack were as strong as any can be",
        )
    if not math.isfinite(response):
        highest = ceiling([(guess_set.canaries, guess_set.guesses) for guess_set in sets], claim.delta, alpha)
        return inconclusive(
            f"{finding}; with {bound.samples['canaries']} coins no bound can exceed {highest:.3f} at delta "
            f"{claim.delta:g}, so they cannot refute this claim: {more} --to-see {claim.epsilon:g} says how "
            "many)"
        )
    return inconclusive(
        f"{finding}, but this audit is too small to test the claim: even the strongest attack would refute it only if "
        f"the true epsilon were {response:.2f} (of randomized response) or {gaussian:.2f} (of Gaussian noise)"
    )


def _detectable(sets: Sequence[GuessCount], claim: EpsilonClaim, alpha: float) -> tuple[float, float]:
    """The smallest epsilons, for randomized response and Gaussian noise, by which a set likely refutes ``claim``."""
    share = alpha / len(sets)
    sizes = [(guess_set.canaries, guess_set.guesses, claim.delta, share, claim.epsilon) for guess_set in sets]
    return min(one_run_detectable(*size) for size in sizes), min(one_run_detectable_gaussian(*size) for size in sizes)
