"""Verifies one guarantee: whether its epsilon and everything stated with it follow from the mechanism.

Each verifier recomputes the number and answers PROVED, REFUTED with a witness, or INCONCLUSIVE; the reason
says what the answer rests on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from scipy.special import ndtr

from privctl.domain.events import Batches, Event, Ledger, SecretMixture, SignBits
from privctl.domain.guarantee import STANDING, Adjacency, Guarantee, Notion, PrivacyUnit, RiskMeasure, Scope
from privctl.domain.mechanism import ClippedTraining, Regime, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import apart, upward
from privctl.domain.verdict import Outcome
from verify.answers import Answer, number
from verify.events import row_of
from verify.losses import secret
from verify.losses.bound_pair import BoundPair
from verify.recompute import dp_weights, gaussian, gridded, ledger, risk
from verify.recompute.opposite_secret import opposite_information
from verify.recompute.sensitivity import TooManyStepsError, least_nonconvex, rounding, sensitivity
from verify.recompute.signs import sign_bits
from verify.settings.users import covers_contents_only
from verify.stated import method_of

#: Relative difference that two sound bounds on an attacker's success, computed on different grids, may have.
_GRIDS = 1e-4
_ROUNDING = 1e-9
#: Relative difference up to which two accountants count as agreeing.
_AGREES = 1e-6
_MANY_STEPS = 50_000_000


def weight_noise(report: PrivacyReport, guarantee: Guarantee) -> Answer:
    """Noise on finished weights: the published claim, or the exact Gaussian bound for a regime's sensitivity."""
    mechanism = report.mechanism
    assert isinstance(mechanism, WeightNoise)
    training = mechanism.training
    if training is None:
        return Outcome.REFUTED, "its mechanism states no facts of the training, and no bound follows from noise alone"
    try:
        if guarantee.name == "published":
            return _published(mechanism, training, guarantee)
        return _regime(mechanism, training, guarantee)
    except TooManyStepsError as error:
        return Outcome.INCONCLUSIVE, str(error)


def _regime(mechanism: WeightNoise, training: ClippedTraining, guarantee: Guarantee) -> Answer:
    if guarantee.name not in list(Regime):
        return Outcome.INCONCLUSIVE, f"no verifier knows the regime {guarantee.name!r}"
    bound = sensitivity(training, Regime(guarantee.name), guarantee.adjacency, mechanism.dimension)
    if guarantee.adjacency not in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        return Outcome.REFUTED, f"the regimes bound replacing or zeroing one example, not {guarantee.adjacency}"
    if bound is None:
        return Outcome.REFUTED, f"the regime {guarantee.name} gives no bound for this training"
    noise = mechanism.noise_stddev
    if guarantee.scope is Scope.ALL_CANDIDATES:
        noise = min((noise, *mechanism.candidate_stddevs))
    stated = guarantee.sensitivity
    if stated is None or not math.isclose(stated, bound, rel_tol=_AGREES):
        return Outcome.REFUTED, f"its sensitivity is {number(stated)}, but what follows from the facts is {bound:.9g}"
    multiplier = guarantee.noise_multiplier
    if multiplier is None or not math.isclose(multiplier, noise / stated, rel_tol=_ROUNDING):
        return Outcome.REFUTED, f"its noise_multiplier is {number(multiplier)}, but the noise is {noise / stated:.9g}"
    error = rounding(training, Regime(guarantee.name))
    return _exact(guarantee, BoundPair(bound / noise * (1 - error), bound / noise * (1 + error)))


def _published(mechanism: WeightNoise, training: ClippedTraining, guarantee: Guarantee) -> Answer:
    stated, epsilon, delta = guarantee.sensitivity, guarantee.epsilon, guarantee.delta
    shift = dp_weights.shift(training)
    if stated is None or not math.isclose(stated, shift, rel_tol=_ROUNDING):
        return Outcome.REFUTED, f"its sensitivity is {number(stated)}, but the paper's formula gives {shift:.9g}"
    if epsilon is None or delta == 0:
        return (
            Outcome.INCONCLUSIVE,
            "it states no finite epsilon at a delta above 0, which is all that the paper claims",
        )
    noise = mechanism.noise_stddev
    least = least_nonconvex(training)
    most = sensitivity(training, Regime.NONCONVEX, Adjacency.REPLACE_ONE, mechanism.dimension)
    if most is not None and gaussian.delta_at(epsilon, most / noise).upper <= delta:
        return (
            Outcome.PROVED,
            f"it holds after all: training moves the weights by {most:.6g} at most, whatever the loss",
        )
    if least is None:
        return Outcome.INCONCLUSIVE, (
            f"it does not follow: weights may move by up to {number(most)}; no case is known here that refutes it for "
            f"{training.optimizer}"
        )
    actual_delta = gaussian.delta_at(epsilon, least / noise)
    if actual_delta.lower <= delta:
        return Outcome.INCONCLUSIVE, "it lies between what one training is known to reach and what is proved for all"
    return Outcome.REFUTED, (
        f"for losses like -C|w| these facts let zeroing one example move the weights by {least:.6g}: "
        + _halfspace(epsilon, least / noise, delta)
        + f"; the epsilon that follows is {gaussian.epsilon_at(delta, least / noise).upper:.6g}"
    )


def _exact(guarantee: Guarantee, mu: BoundPair) -> Answer:
    """A single Gaussian mechanism whose shift, in standard deviations, lies within ``mu``; in ball arithmetic."""
    if guarantee.epsilon is None:
        return Outcome.CONSISTENT, "it claims no finite epsilon"
    epsilon, delta = guarantee.epsilon, guarantee.delta
    if delta == 0:
        return Outcome.REFUTED, "Gaussian noise has no finite epsilon at delta 0"
    actual_delta = BoundPair(gaussian.delta_at(epsilon, mu.lower).lower, gaussian.delta_at(epsilon, mu.upper).upper)
    holds = actual_delta.at_most(delta)
    if holds:
        reason = (
            f"delta at this epsilon is at most {upward(actual_delta.upper)} (shift {mu.upper:.6g}, ball arithmetic)"
        )
        return Outcome.PROVED, reason
    if holds is None:
        low, high, shown = apart(actual_delta.lower, actual_delta.upper, delta)
        return Outcome.INCONCLUSIVE, f"delta at this epsilon lies between {low} and {high}, and {shown} may be right"
    follows = gaussian.epsilon_at(delta, mu.upper).upper
    return Outcome.REFUTED, (
        f"{_halfspace(epsilon, mu.lower, delta)}; the epsilon that follows is {apart(follows, epsilon)[0]}"
    )


def _halfspace(epsilon: float, mu: float, claimed: float) -> str:
    """The sentence on the half-space whose probabilities show that delta at ``epsilon`` exceeds ``claimed``."""
    edge = epsilon / mu - mu / 2
    delta, shown = apart(gaussian.delta_at(epsilon, mu).lower, claimed)
    return (
        f"the event 'the output lies more than {edge:.6g} deviations along the shift' has probability "
        f"{ndtr(-edge):.6g} with it and {ndtr(-edge - mu):.6g} without, so delta is {delta} at epsilon {epsilon:.6g}, "
        f"not {shown}"
    )


def ledger_guarantee(report: PrivacyReport, guarantee: Guarantee) -> Answer:
    """A ledger: epsilon, `follows`, `floor` and the attacker's success, from certified upper and lower bounds."""
    whole = report.mechanism
    assert isinstance(whole, Ledger)
    only = whole.events[0] if len(whole.events) == 1 else None
    row = None if only is None else row_of(only)
    if only is not None and row is not None and row.with_noise is not None:
        stated, noise = guarantee.noise_multiplier, row.noise(only)
        if stated is None:
            return Outcome.REFUTED, "its noise_multiplier is missing"
        if report.step != "account" and stated != noise:
            return Outcome.REFUTED, f"its noise_multiplier is {stated:.9g}, but the ledger's is {noise:.9g}"
        whole = Ledger(events=(row.with_noise(only, stated),))
    wanted = Adjacency.ZERO_OUT if covers_contents_only(report) else _adjacency(whole)
    if guarantee.adjacency not in (wanted, *((Adjacency.UNSTATED,) if guarantee.status not in STANDING else ())):
        return Outcome.REFUTED, f"its neighbours are {guarantee.adjacency}, but bounds on these events are for {wanted}"
    if _has_several_notions(whole):
        return Outcome.INCONCLUSIVE, "no single pair of neighbours fits all its events"
    if sum(event.steps for event in whole.events) > _MANY_STEPS:
        return Outcome.INCONCLUSIVE, f"more than {_MANY_STEPS} steps are too many to recompute"
    try:
        answer = _epsilon(whole, guarantee)
        return answer if answer[0] is Outcome.REFUTED else _with_risks(whole, guarantee, answer)
    except ledger.NoBoundError as error:
        return Outcome.INCONCLUSIVE, f"no independent bound: {error}"


def of_another_ledger(report: PrivacyReport, guarantee: Guarantee) -> bool:
    """Whether the guarantee covers events outside the report's ledger, such as measurements counted as a paper does."""
    method = method_of(report)
    return method is not None and guarantee.name in method.of_another_ledger


def follows_and_floor(report: PrivacyReport, guarantee: Guarantee) -> Iterator[Answer]:
    """Yields the answer if `follows` or `floor` is refuted or undecided, for a guarantee whose epsilon is no bound."""
    if (guarantee.follows is None and guarantee.floor is None) or of_another_ledger(report, guarantee):
        return
    check = verifier_of(report, guarantee)
    if check is ledger_guarantee:
        answer = ledger_guarantee(report, replace(guarantee, epsilon=None, risks=()))
        if answer[0] in (Outcome.REFUTED, Outcome.INCONCLUSIVE):
            yield answer


def _epsilon(whole: Ledger, guarantee: Guarantee) -> Answer:
    claimed, follows, floor = guarantee.epsilon, guarantee.follows, guarantee.floor
    claims = [value for value in (claimed, follows) if value is not None]
    if guarantee.delta == 0:
        actual_epsilon = ledger.pure_epsilon(whole)
    elif claims or floor is not None or guarantee.status in STANDING:
        actual_epsilon = ledger.epsilon_of(whole, guarantee.delta, claims, () if floor is None else (floor,))
    else:
        return Outcome.CONSISTENT, "it claims no finite epsilon"
    quantity = f"epsilon at delta {guarantee.delta:g}"
    if (answer := _check_follows_and_floor(actual_epsilon, follows, floor)) is not None:
        return answer
    if claimed is None:
        return Outcome.CONSISTENT, f"it claims no finite epsilon; {_finite(actual_epsilon.upper)} follows"
    holds = actual_epsilon.at_most(claimed)
    low, high, shown = apart(actual_epsilon.lower, actual_epsilon.upper, claimed)
    if holds:
        return Outcome.PROVED, f"{quantity} is at most {upward(actual_epsilon.upper, 9)}"
    if holds is None and actual_epsilon.upper <= claimed * (1 + _AGREES):
        return Outcome.CONSISTENT, f"{quantity} lies between {low} and {high}: {shown}, up to rounding"
    if holds is None:
        return Outcome.INCONCLUSIVE, f"{quantity} lies between {low} and {high}, so {shown} may be right"
    why = _witness(whole, guarantee, claimed, actual_epsilon.upper) or f"{quantity} is at least {low}"
    return Outcome.REFUTED, f"{why}; the epsilon that follows is {_finite(actual_epsilon.upper)}"


def _check_follows_and_floor(actual_epsilon: BoundPair, follows: float | None, floor: float | None) -> Answer | None:
    """The answer if one of the two values is refuted or undecided, otherwise None."""
    if follows is not None and actual_epsilon.at_most(follows) is False:
        shown, least = apart(follows, actual_epsilon.lower)
        return Outcome.REFUTED, f"it says that {shown} follows, but epsilon is at least {least}"
    if follows is not None and actual_epsilon.upper > follows * (1 + _AGREES):
        shown, most = apart(follows, actual_epsilon.upper)
        return Outcome.INCONCLUSIVE, f"it says that {shown} follows, and {most} is what is proved here"
    if floor is not None and floor > actual_epsilon.upper * (1 + _ROUNDING):
        shown, most = apart(floor, actual_epsilon.upper)
        return Outcome.REFUTED, f"it says no epsilon below {shown} holds, but {most} does"
    if floor is not None and floor > actual_epsilon.lower * (1 + _GRIDS):
        shown, least = apart(floor, actual_epsilon.lower)
        return Outcome.INCONCLUSIVE, f"it says no epsilon below {shown} holds, but this is shown only below {least}"
    return None


def _witness(whole: Ledger, guarantee: Guarantee, claimed: float, near: float) -> str | None:
    """An event that refutes the claim, for an epsilon that is about ``near``; None if the grid contains none."""
    mu = ledger.exact_shift(whole)
    if mu is not None:
        in_turn = any(row_of(event).drawn(event) is Batches.SHUFFLED for event in whole.events)
        seen = " (for an observer who knows the order of the records)" if in_turn else ""
        return _halfspace(claimed, mu, guarantee.delta) + seen
    if guarantee.delta == 0:
        return "one step's loss can be as large as its bound"
    return ledger.bounds(whole, math.log(guarantee.delta), ledger.PRECISIONS[0], near).witness(claimed, guarantee.delta)


def _with_risks(whole: Ledger, guarantee: Guarantee, answer: Answer) -> Answer:
    """``answer``, unless an attacker can do better than the guarantee's risks say."""
    one_order = guarantee.notion is Notion.SECRET_PROTECTION
    for each in guarantee.risks:
        if each.measure is RiskMeasure.ADVANTAGE:
            bounds = risk.advantage(whole, each.bound)
        elif each.measure in (RiskMeasure.TRUE_POSITIVE_RATE, RiskMeasure.POSTERIOR) and each.at is not None:
            bounds = risk.power(whole, each.at, each.bound, present_only=one_order)
        else:
            return Outcome.INCONCLUSIVE, f"no verifier knows the risk {each.measure}"
        what = f"the {each.measure}" if each.at is None else f"the {each.measure} at {each.at:g}"
        low, high, shown = apart(bounds.lower, bounds.upper, each.bound)
        holds = bounds.at_most(each.bound)
        if holds is False:
            return Outcome.REFUTED, (
                f"it says {what} is at most {shown}, but a test of the sum of rounded losses reaches {low}"
            )
        if holds is None and bounds.upper > each.bound * (1 + _GRIDS):
            return Outcome.INCONCLUSIVE, f"{what} lies between {low} and {high}, and {shown} is not proved"
        if holds is None and answer[0] is Outcome.PROVED:
            reason = f"{answer[1]}; {what} is at most {high}, which is {shown} up to {_GRIDS:g} of it"
            answer = Outcome.CONSISTENT, reason
    return answer


def _adjacency(whole: Ledger) -> Adjacency:
    """Zero-out if a secret is protected, otherwise the first of replace-one, zero-out and add-or-remove that occurs."""
    if _is_of_secret(whole):
        return Adjacency.ZERO_OUT
    adjacencies = {row_of(event).neighbours(event) for event in whole.events}
    order = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT, Adjacency.ADD_OR_REMOVE)
    return next(outcome for outcome in order if outcome in adjacencies)


def _is_of_secret(whole: Ledger) -> bool:
    return any(row_of(event).unit is PrivacyUnit.SECRET for event in whole.events)


def _has_several_notions(whole: Ledger) -> bool:
    """Whether no single pair of neighbours fits all events: their units or their kinds of adjacency differ.

    The same holds if records are zeroed and the bound of one event does not cover zeroing.
    """
    rows = [(row_of(event), event) for event in whole.events]
    by_zeros = _adjacency(whole) is Adjacency.ZERO_OUT and not all(row.zeroed(event) for row, event in rows)
    return by_zeros or len({(r.unit, r.group_size(e), r.neighbours(e) is Adjacency.REPLACE_ONE) for r, e in rows}) > 1


#: The end of a plan's name for the bound from the whole trade-off curve rather than the divergence alone.
_CURVE = "trade-off curve"
_AGAIN = "computed again on another grid"


def _nats_between_opposites(event: Event) -> BoundPair | None:
    """Divergence in nats between two opposite values of the secret; None if the event does not name its records."""
    if not isinstance(event, SecretMixture):
        return None
    return opposite_information(event.probabilities, event.noise_multiplier, event.steps)


def secret_information(report: PrivacyReport, guarantee: Guarantee) -> Answer:
    """A secret's protection: nats by a second quadrature and the posterior by Fano's inequality, or the whole curve."""
    whole = report.mechanism
    assert isinstance(whole, Ledger)
    if guarantee.delta > 0:
        return ledger_guarantee(report, guarantee)
    opposite = report.step != "account" and guarantee.adjacency is Adjacency.REPLACE_ONE
    per_event = [
        _nats_between_opposites(event) if opposite else row_of(event).information(event) for event in whole.events
    ]
    per_training = [nats for nats in per_event if nats is not None]
    if len(per_training) < len(whole.events):
        return Outcome.INCONCLUSIVE, "the records of its secrets are in the plan, which is missing or not looked at"
    nats = BoundPair(sum(f.lower for f in per_training), sum(f.upper for f in per_training))
    if guarantee.adjacency is not Adjacency.ZERO_OUT and not opposite:
        return (
            Outcome.REFUTED,
            f"its neighbours are {guarantee.adjacency}; the divergence is from the secret zeroed out",
        )
    if guarantee.epsilon is None or guarantee.epsilon < nats.lower * (1 - _ROUNDING):
        return Outcome.REFUTED, f"what follows is {nats.upper:.9g} nats, not {number(guarantee.epsilon)}"
    only = whole.events[0] if len(whole.events) == 1 else None
    noise = None if only is None else row_of(only).noise(only)
    if noise is not None and guarantee.noise_multiplier not in (None, noise):
        return Outcome.REFUTED, (
            f"its noise_multiplier is {number(guarantee.noise_multiplier)}, the ledger's {noise:.9g}"
        )
    for bounded in guarantee.risks:
        if bounded.measure is not RiskMeasure.POSTERIOR or bounded.at is None:
            return Outcome.INCONCLUSIVE, f"no verifier knows the risk {bounded.measure} of a secret"
        least = secret.posterior(nats.lower, bounded.at)
        if guarantee.name.endswith(_CURVE):
            return _with_risks(whole, guarantee, (Outcome.PROVED, f"{nats.upper:.9g} nats and the curve, {_AGAIN}"))
        if bounded.bound < least * (1 - 1e-8):
            return Outcome.REFUTED, f"a prior of {bounded.at:g} and {nats.upper:.6g} nats allow {least:.9g}, by Fano"
    return (
        Outcome.PROVED,
        f"at most {nats.upper:.9g} nats about the secret, by the trapezoidal rule; Fano gives the rest",
    )


Verifier = Callable[[PrivacyReport, Guarantee], Answer]

#: The verifier for each mechanism and notion of privacy. Other combinations are not verified.
VERIFIERS: dict[tuple[type, Notion], Verifier] = {
    (WeightNoise, Notion.APPROXIMATE_DP): weight_noise,
    (Ledger, Notion.APPROXIMATE_DP): ledger_guarantee,
    (Ledger, Notion.SECRET_PROTECTION): secret_information,
    (SignBits, Notion.MUTUAL_INFORMATION): sign_bits,
    (Ledger, Notion.MUTUAL_INFORMATION): sign_bits,
    (SignBits, Notion.APPROXIMATE_DP): sign_bits,
}


def verifier_of(report: PrivacyReport, guarantee: Guarantee) -> Verifier | None:
    """The verifier for a guarantee of ``report``, or None if there is none.

    It subtracts the floating-point allowance first, since the rest must hold in real arithmetic.
    """
    check = VERIFIERS.get((type(report.mechanism), guarantee.notion))
    if check is None or guarantee.arithmetic is None:
        return check
    return partial(_without_float_allowance, check)


def _without_float_allowance(check: Verifier, report: PrivacyReport, guarantee: Guarantee) -> Answer:
    if wrong := gridded.objection(report, guarantee):
        return Outcome.REFUTED, wrong
    ideal = gridded.ideal_guarantee(report, guarantee)
    outcome, reason = check(report, ideal.guarantee)
    if guarantee.epsilon is None:
        return outcome, reason
    taken = f"{ideal.epsilon:.3g} of {number(guarantee.epsilon)} was subtracted for floating-point noise"
    return outcome, f"{reason}; {taken}"


def titles(report: PrivacyReport) -> Iterator[str]:
    """Yields the title of each guarantee, with its adjacency and scope if its name occurs more than once."""
    times = Counter(g.name for g in report.guarantees)
    for guarantee in report.guarantees:
        more = [str(guarantee.adjacency), *(["all candidates"] if guarantee.scope is Scope.ALL_CANDIDATES else [])]
        yield guarantee.name if times[guarantee.name] == 1 else f"{guarantee.name}, {', '.join(more)}"


def _finite(value: float) -> str:
    return f"{value:.9g}" if math.isfinite(value) else "none that is finite"
