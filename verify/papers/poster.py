"""The poster on DP fine-tuning: three composition theorems, at rate 0.01, 1000 steps, delta 1e-5 and epsilon 1."""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import approx, judge_gaussian
from verify.papers.sampling import judge_floor, judge_sampled
from verify.prove.enclosures.enclosure import Interval, ball, decimal, enclose
from verify.prove.prover import Prover
from verify.prove.theorem import Theorem

_RATE, _STEPS, _DELTA, _EPSILON = Fraction(1, 100), 1000, Fraction(1, 10**5), Fraction(1)
#: The number of batches an example takes part in if batches partition the data.
_VISITS = _RATE * _STEPS
_MOMENTS = Fraction("1.514")


def naive_multiplier() -> Interval:
    """The noise k sqrt(2 ln(1.25 k / delta)) / epsilon for k participations: 52.988025 in the poster's table."""
    return enclose(lambda: ball(_VISITS) * (2 * ball(Fraction(5, 4) * _VISITS / _DELTA).log()).sqrt() / ball(_EPSILON))


def advanced_multiplier(*, as_printed: bool) -> Interval:
    """The noise of the 'advanced' theorem, with delta split in halves.

    If ``as_printed``, a participation gets epsilon times 2 sqrt(2 k ln(1/delta')), otherwise epsilon divided by that.
    """

    def multiplier() -> object:
        base = (2 * ball(Fraction(5, 2) * _VISITS / _DELTA).log()).sqrt()
        factor = 2 * (2 * ball(_VISITS) * ball(2 / _DELTA).log()).sqrt()
        return base / (ball(_EPSILON) * factor) if as_printed else base * factor / ball(_EPSILON)

    return enclose(multiplier)  # type: ignore[arg-type]


def _on_visits(prover: Prover, name: str, words: str, noise: Interval) -> Judgement:
    """The verdict for fixed batches, where an example takes part in k of them and k Gaussians compose to one."""
    judgement = judge_gaussian(prover, name, words, _EPSILON, _DELTA, _VISITS / noise.low**2)
    if judgement.outcome is Outcome.REFUTED:
        judgement = judge_gaussian(prover, name, words, _EPSILON, _DELTA, _VISITS / noise.high**2)
    return judgement


def _naive(prover: Prover) -> Judgement:
    noise = naive_multiplier()
    return _on_visits(prover, "poster-naive", f"noise {approx(noise)}, ten participations", noise)


def _printed(prover: Prover) -> Judgement:
    noise = advanced_multiplier(as_printed=True)
    words = f"noise {approx(noise)} (2 sqrt(2 k ln(1/delta')) times epsilon a participation, not epsilon over it)"
    return _on_visits(prover, "poster-advanced-printed", words, noise)


def _upright(prover: Prover) -> Judgement:
    noise = advanced_multiplier(as_printed=False)
    return _on_visits(prover, "poster-advanced", f"noise {approx(noise)}, ten participations", noise)


def _ranking(prover: Prover) -> Judgement:
    words = f"noise {decimal(_MOMENTS)} on Poisson batches"
    judgement = judge_sampled(prover, "poster-moments", words, (_MOMENTS, _RATE, _STEPS), _DELTA, _EPSILON)
    naive, advanced = naive_multiplier(), advanced_multiplier(as_printed=False)
    if judgement.outcome is not Outcome.PROVED or naive.low <= _MOMENTS:
        return judgement
    return Judgement(
        outcome=Outcome.PROVED,
        reason=judgement.reason,
        holds=f"noise {decimal(_MOMENTS)} by moments (Poisson batches), {approx(naive, 8)} by the naive formula, "
        f"{approx(advanced, 8)} by the advanced one read upright",
    )


def _noise_after_mean(prover: Prover) -> Judgement:
    """Noise sigma C added to a mean over b examples, each clipped to C."""
    theorem = Theorem(
        name="poster-noise-after-mean",
        statement="Noise sigma C on a mean of b examples clipped to C has noise multiplier sigma.",
        assumptions=("(>= b 1.0)", "(> C 0.0)", "(> sigma 0.0)", "(= (* sensitivity b) C)", "(= stddev (* sigma C))"),
        claim="(= stddev (* sigma sensitivity))",
    )
    proof = prover.prove(theorem)
    return Judgement(
        outcome=proof.outcome,
        reason="one example moves a mean by C / b, so the multiplier is sigma b: b times too much, literally",
        holds="noise sigma C / b on the mean",
        witness=proof.witness,
    )


def limit_multiplier() -> Interval:
    """The noise at which mu = q sqrt(T (e^(1/sigma^2) - 1)) equals the Gaussian shift for (epsilon, delta)."""
    from verify.prove.enclosures.gaussian import minimal_multiplier

    shift = minimal_multiplier(_EPSILON, _DELTA)
    middle = 2 / (shift.low + shift.high)
    return enclose(lambda: 1 / ((ball(middle**2) / (_STEPS * ball(_RATE) ** 2)).log1p()).sqrt())


def _limit(prover: Prover) -> Judgement:
    noise = limit_multiplier()
    words = f"noise {approx(noise, 7)}, which the central limit gives for epsilon 1"
    return judge_floor(prover, "poster-central-limit", words, (noise.high, _RATE, _STEPS), _DELTA, _EPSILON)


PAPER = Paper(
    title="DP fine-tuning poster",
    claims=(
        PublishedClaim(
            key="poster-naive",
            statement="Its naive formula gives enough noise for epsilon 1 (batches that partition the data).",
            expected=Outcome.PROVED,
            judge=_naive,
        ),
        PublishedClaim(
            key="poster-advanced-printed",
            statement="Its advanced formula, as printed, gives enough noise for epsilon 1.",
            expected=Outcome.REFUTED,
            judge=_printed,
        ),
        PublishedClaim(
            key="poster-advanced",
            statement="Its advanced formula, with the fraction inverted, gives enough noise for epsilon 1.",
            expected=Outcome.PROVED,
            judge=_upright,
        ),
        PublishedClaim(
            key="poster-moments",
            statement="The moments accountant needs far less noise than the naive formula.",
            expected=Outcome.PROVED,
            judge=_ranking,
        ),
        PublishedClaim(
            key="poster-algorithm-1",
            statement="Algorithm 1's noise, sigma C on the mean of a batch, has noise multiplier sigma.",
            expected=Outcome.REFUTED,
            judge=_noise_after_mean,
        ),
        PublishedClaim(
            key="poster-central-limit",
            statement="The Gaussian limit (GDP) of sampled steps gives enough noise for epsilon 1.",
            expected=Outcome.REFUTED,
            judge=_limit,
        ),
    ),
    unchecked=(
        Omission(
            what="poster: its moments formula",
            reason="it is printed up to an unknown constant, O(.), from which no noise follows",
        ),
    ),
)
