"""Checks claims given on the command line: whether a mechanism has the stated privacy.

PROVED and REFUTED rest on enclosures and a proof. INCONCLUSIVE says what was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from privctl.domain.errors import CommandError
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement
from verify.papers.judging import approx, bound_text, judge_gaussian
from verify.papers.sampling import floor_text, judge_sampled, search_result
from verify.prove.enclosures import information
from verify.prove.enclosures.composition import RepeatedRelease, worst_case
from verify.prove.enclosures.enclosure import Interval, ball, below, decimal, enclose
from verify.prove.enclosures.gaussian import LEAST_DELTA
from verify.prove.enclosures.mixture import (
    divergence_ceiling,
    few_enough,
    mixture_divergence,
    two_contents_advantage,
)
from verify.prove.enclosures.sampled import laplace_floor
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.prover import Prover

#: Limits beyond which exact numbers are too long to be useful.
MOST_EPSILON, MOST_STEPS = 100_000, 1_000_000


def check_gaussian(
    prover: Prover,
    *,
    epsilon: Fraction,
    delta: Fraction,
    noise_multiplier: Fraction,
    steps: int = 1,
    sample_rate: Fraction = Fraction(1),
) -> Judgement:
    """Whether ``steps`` Gaussian mechanisms, sampled if the rate is below 1, are (``epsilon``, ``delta``)-DP.

    Raises CommandError for numbers out of range.
    """
    _ranges(epsilon, steps, delta=delta, sample_rate=sample_rate)
    _positive("noise-multiplier", noise_multiplier)
    if delta == 0 and sample_rate > 0:
        return Judgement(
            outcome=Outcome.REFUTED,
            reason="the privacy loss of Gaussian noise exceeds every number with some probability",
            holds="a delta above 0",
        )
    if sample_rate in (0, 1):
        words = f"{steps} Gaussian mechanism{'s' * (steps > 1)} of noise multiplier {decimal(noise_multiplier)}"
        return judge_gaussian(
            prover, "check-gaussian", words, epsilon, delta, sample_rate * steps / noise_multiplier**2
        )
    noise = f"noise multiplier {decimal(noise_multiplier)}"
    words = f"{steps} steps of {noise} on Poisson batches of rate {decimal(sample_rate)}"
    return judge_sampled(prover, "check-sampled", words, (noise_multiplier, sample_rate, steps), delta, epsilon)


def check_laplace(
    prover: Prover,
    *,
    epsilon: Fraction,
    delta: Fraction,
    scale: Fraction,
    steps: int = 1,
    sample_rate: Fraction = Fraction(1),
) -> Judgement:
    """Like ``check_gaussian``, for Laplace noise of ``scale`` / sensitivity on one number."""
    _ranges(epsilon, steps, delta=delta, sample_rate=sample_rate)
    _positive("scale", scale)
    words = f"{steps} Laplace mechanism{'s' * (steps > 1)} of scale {decimal(scale)}"
    total = _laplace_total(scale, sample_rate, steps)
    if below(total, epsilon):
        return Judgement(
            outcome=Outcome.PROVED,
            reason=f"{words}: the loss never exceeds it",
            holds=f"epsilon {approx(total, 12)}",
        )
    if delta == 0:
        refuted = below(total, epsilon) is False
        return Judgement(
            outcome=Outcome.REFUTED if refuted else Outcome.INCONCLUSIVE,
            reason=f"{words}: outputs beyond both centres have that loss" if refuted else f"{words}: too close to tell",
            holds=f"epsilon {approx(total, 12)}",
            witness="S: every output is above 1, where the centres are 1 and 0; P(S) / P'(S) is e to that epsilon",
        )
    return _laplace_with_delta(prover, words, epsilon, delta, scale, steps, sample_rate)


def _laplace_total(scale: Fraction, rate: Fraction, steps: int) -> Interval:
    """The largest loss of all steps, which is rational if the rate is 0 or 1."""
    if rate == 1:
        return Interval(low=steps / scale, high=steps / scale)
    if rate == 0:
        return Interval(low=Fraction(0), high=Fraction(0))
    return enclose(lambda: steps * (ball(rate) * ball(1 / scale).expm1()).log1p())


def _laplace_with_delta(
    prover: Prover, words: str, epsilon: Fraction, delta: Fraction, scale: Fraction, steps: int, rate: Fraction
) -> Judgement:
    one = _laplace_total(scale, rate, 1)
    if steps == 1 and rate == 1:
        needed, by = enclose(lambda: 1 - ((ball(epsilon) - 1 / ball(scale)) / 2).exp()), "exactly"
    else:
        worst = worst_case(RepeatedRelease(epsilon=one.high, delta=Fraction(0), count=steps), epsilon)
        needed, by = worst.delta, "by the worst case of such releases"
    outcome, _ = decide(
        prover,
        NumericComparison(
            name="check-laplace",
            statement=f"{words}: the delta needed at epsilon {epsilon}, {by}, is at most {delta}.",
            boxes={"delta": needed},
            term="delta",
            bound=delta,
        ),
    )
    if outcome is Outcome.PROVED or by == "exactly":
        return Judgement(
            outcome=outcome,
            reason=f"{words}: delta is {bound_text(needed)}, {by}",
            witness="S: outputs whose loss exceeds epsilon" if outcome is Outcome.REFUTED else "",
        )
    floor = laplace_floor(scale, rate, steps, delta)
    if floor is not None and floor.epsilon > epsilon:
        return Judgement(
            outcome=Outcome.REFUTED,
            reason=f"{words}: an event exceeds it",
            holds=f"epsilon > {decimal(floor.epsilon, 6)} at delta {decimal(delta)}",
            witness=floor_text(floor),
        )
    return Judgement(
        outcome=Outcome.INCONCLUSIVE,
        reason=f"{words}: the worst case of such releases needs delta {bound_text(needed)}, and {search_result(floor)}",
    )


def check_ferret(
    prover: Prover,
    *,
    groups: int,
    steps: int,
    sample_rate: Fraction,
    fire_probability: Fraction,
    nats: Fraction | None = None,
    delta: Fraction | None = None,
) -> Judgement:
    """Whether FERRET's signs reveal at most ``nats`` on average, or are (any epsilon, ``delta``)-DP; give one."""
    _ranges(Fraction(0), steps, sample_rate=sample_rate, fire_probability=fire_probability)
    if not 1 <= groups <= MOST_STEPS:
        raise CommandError(f"--groups is {groups}; it must lie between 1 and {MOST_STEPS}")
    leak = information.reveal(groups, steps, sample_rate, fire_probability)
    if delta is not None:
        return _ferret_delta(prover, leak, delta)
    assert nats is not None
    spent = information.sign_bits(groups, steps, sample_rate, fire_probability)
    if below(spent, nats):
        return Judgement(
            outcome=Outcome.PROVED,
            reason="as mutual information, on average: a fired bit carries at most ln 2 nats (Cuff and Yu 2016)",
            holds=f"{approx(spent, 12)} nats; delta is at least {approx(leak, 6)} at every epsilon",
        )
    least = information.revealing_channel(leak.low)
    if below(least, nats) is False:
        return Judgement(
            outcome=Outcome.REFUTED,
            reason="whether a record that decides its batch's signs was used is told for certain too often",
            holds=f"between {approx(least, 8)} and {approx(spent, 8)} nats",
            witness=f"it is given away with chance d = {approx(leak, 8)}, which carries ln(1 + d (1-d)^((1-d)/d))",
        )
    return Judgement(
        outcome=Outcome.INCONCLUSIVE,
        reason=f"G T s p ln 2 is {approx(spent, 8)} nats, which is an upper bound; the worst record shows "
        f"{approx(least, 8)} only, and the claim lies between",
    )


def _ferret_delta(prover: Prover, leak: Interval, delta: Fraction) -> Judgement:
    if leak.high == 0:
        return Judgement(outcome=Outcome.PROVED, reason="nothing fires, so nothing is told", holds="delta 0")
    comparison = NumericComparison(
        name="check-ferret",
        statement=f"The chance that the signs give a record away for certain is at most {delta}.",
        boxes={"delta": leak},
        term="delta",
        bound=delta,
    )
    outcome, _ = decide(prover, comparison)
    if outcome is Outcome.REFUTED:
        return Judgement(
            outcome=outcome,
            reason="a record that decides its batch's signs is given away once it fires; no epsilon covers it",
            holds=f"delta >= {approx(leak)} at every epsilon",
            witness="S: some sign is the one that only this record gives; P'(S) = 0",
        )
    return Judgement(
        outcome=Outcome.INCONCLUSIVE,
        reason=f"the worst record known needs delta {approx(leak)}; whether another needs more was not shown",
    )


def check_secret(
    prover: Prover,
    *,
    chances: Sequence[Fraction],
    noise_multiplier: Fraction,
    steps: int,
    prior: Fraction,
    posterior: Fraction,
) -> Judgement:
    """Whether no guess of a secret succeeds above ``posterior`` if each content has at most probability ``prior``.

    ``chances`` are the sampling probabilities of its records. PROVED by the divergence from the secret's absence and
    Fano's inequality; REFUTED by contents that pull the sum in opposite directions.
    """
    _ranges(Fraction(0), steps, prior=prior, posterior=posterior)
    _positive("noise-multiplier", noise_multiplier)
    if not 0 < prior < 1:
        raise CommandError(f"--prior is {decimal(prior)}; it must be above 0 and below 1")
    if posterior < prior:
        return Judgement(
            outcome=Outcome.REFUTED,
            reason="a blind guess is right with the prior's chance",
            holds=f"{decimal(prior)}",
        )
    if posterior in (prior, 1):
        whole = posterior == 1
        return Judgement(
            outcome=Outcome.PROVED if whole else Outcome.INCONCLUSIVE,
            reason="no chance exceeds 1" if whole else "any information at all may help a little; nothing was shown",
        )
    allowed = information.divergence(posterior, prior)
    spent = divergence_ceiling(chances, noise_multiplier)
    if steps * spent.high > allowed.low and few_enough(chances):
        spent = mixture_divergence(chances, noise_multiplier)
    outcome, _ = decide(
        prover,
        NumericComparison(
            name="check-secret",
            statement=f"{steps} steps spend at most kl({posterior}, {prior}) nats on the secret.",
            boxes={"step": spent, "allowed": allowed},
            term=f"(- (* {steps}.0 step) allowed)",
            bound=Fraction(0),
        ),
    )
    total = Interval(low=steps * spent.low, high=steps * spent.high)
    nats = f"{approx(total, 8) if total.low else f'at most {decimal(total.high, 8)}'} nats spent, {approx(allowed, 8)}"
    if outcome is Outcome.PROVED:
        return Judgement(outcome=outcome, reason="Fano's inequality", holds=f"{nats} allowed")
    return _secret_refuted(chances, noise_multiplier, steps, prior, posterior, f"{nats} would be allowed")


def _secret_refuted(
    chances: Sequence[Fraction], noise: Fraction, steps: int, prior: Fraction, posterior: Fraction, nats: str
) -> Judgement:
    """Tries to refute the claim with 2 m equally likely contents, half pulling each way; the sign tells which half."""
    try:
        advantage = two_contents_advantage(chances, noise, steps)
    except ValueError:
        return Judgement(outcome=Outcome.INCONCLUSIVE, reason=f"Fano's inequality does not give it: {nats}")
    half = max(1, -(-1 // (2 * prior)))
    success = (1 + advantage.low) / (2 * half)
    if success > posterior:
        return Judgement(
            outcome=Outcome.REFUTED,
            reason="an attacker who looks at the sign of the outputs' sum does better",
            holds=f"success {decimal(success, 9)}",
            witness=f"{2 * half} equally likely contents, half of them pulling the sum up, half down",
        )
    return Judgement(
        outcome=Outcome.INCONCLUSIVE,
        reason=f"Fano's inequality does not give it: {nats}; the attacker tried succeeds with {decimal(success, 6)} "
        "only",
    )


def _ranges(epsilon: Fraction, steps: int, **chances: Fraction) -> None:
    if not 0 <= epsilon <= MOST_EPSILON:
        raise CommandError(f"--epsilon is {decimal(epsilon)}; it must lie between 0 and {MOST_EPSILON}")
    if not 1 <= steps <= MOST_STEPS:
        raise CommandError(f"--steps is {steps}; it must lie between 1 and {MOST_STEPS}")
    if 0 < chances.get("delta", 1) < LEAST_DELTA:
        raise CommandError(f"--delta is {decimal(chances['delta'])}; it must be 0 or at least 1e-90")
    for name, value in chances.items():
        if not 0 <= value <= 1:
            raise CommandError(f"--{name.replace('_', '-')} is {decimal(value)}; it must lie between 0 and 1")


def _positive(flag: str, value: Fraction) -> None:
    if value <= 0:
        raise CommandError(f"--{flag} is {decimal(value)}; it must be above 0")
