"""FERRET: the nats of its published signs and what they mean, with N=10000, batches of 50, 5 epochs and G=2."""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import agrees, approx, judgement_of, theorem_claim
from verify.prove.enclosures import gaussian
from verify.prove.enclosures import information as nats
from verify.prove.enclosures.enclosure import ball, below, decimal, enclose
from verify.prove.enclosures.functions import log, normal_cdf
from verify.prove.library import information as theorems
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.prover import Prover
from verify.prove.theorem import SolverFinding

GROUPS, STEPS, RATE = 2, 1000, Fraction(5, 1000)
_HALF, _DELTA = Fraction(1, 2), Fraction(1, 10**5)


def _chance(budget: Fraction) -> Fraction:
    """p* for a budget, rounded down by less than 1e-20, so that a leak at this probability is also one at p*."""
    return nats.fire_probability(budget, GROUPS, STEPS, RATE).low


def _budget(prover: Prover) -> Judgement:
    kept, largest = prover.prove(theorems.fire_meets_budget()), prover.prove(theorems.fire_is_largest())
    both = kept.finding is SolverFinding.PROVED and largest.finding is SolverFinding.PROVED
    return judgement_of(
        kept if not both else largest,
        because="a fired bit carries at most ln 2 nats, and none about records outside its batch (Cuff and Yu 2016)",
        holds=f"p* = {approx(nats.fire_probability(_HALF, GROUPS, STEPS, RATE))} for 0.5 nats; on average over priors "
        "and steps, not in the worst case",
    )


def _table(prover: Prover) -> Judgement:
    most = nats.sign_bits(GROUPS, STEPS, RATE, 1)
    chance = nats.fire_probability(_HALF, GROUPS, STEPS, RATE)
    same = agrees("6.93", most) and agrees("0.072", chance)
    return Judgement(
        outcome=Outcome.PROVED if same else Outcome.REFUTED,
        reason="both are what the formula gives for G=2, T=1000 and sample rate 0.005",
        holds=f"{approx(most, 12)} nats and {approx(chance, 12)}",
        witness="2 * 1000 * 0.005 * ln 2, and 0.5 divided by it",
    )


def _worst_case(prover: Prover) -> Judgement:
    leak = nats.reveal(GROUPS, STEPS, RATE, _chance(_HALF))
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="ferret-worst-case",
            statement="The chance that the signs give a record away for certain is at most 1e-5.",
            boxes={"delta": leak},
            term="delta",
            bound=_DELTA,
        ),
    )
    return Judgement(
        outcome=outcome,
        reason="a record that decides its batch's signs is given away for certain once it fires; no epsilon covers that"
        if outcome is Outcome.REFUTED
        else shows,
        holds=f"delta >= {approx(leak)} at every epsilon",
        witness="S: some sign is the one that only this record gives. P'(S) = 0, P(S) = 1 - [1 - s(1 - (1-p)^2)]^1000 "
        f"with s = 0.005, p = {decimal(_chance(_HALF), 8)}",
    )


def _as_strong(prover: Prover) -> Judgement:
    """Compares the worst record's leak under FERRET with the most that a bit can leak under the Gaussian mechanism."""
    noise = gaussian.minimal_multiplier(_HALF, _DELTA)
    most = gaussian.flipped_bit_information(1 / noise.low**2)
    chance = nats.reveal(GROUPS, STEPS, RATE, _chance(_HALF)).low
    least = nats.revealing_channel(chance)
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="ferret-as-strong",
            statement="FERRET at 0.5 nats leaks of its worst record no more than Gaussian noise at epsilon 0.5 can.",
            boxes={"signs": least, "noise": most},
            term="(- signs noise)",
            bound=Fraction(0),
        ),
    )
    return Judgement(
        outcome=outcome,
        reason="one number means two things: nats of information, and a ratio of likelihoods"
        if outcome is Outcome.REFUTED
        else shows,
        holds=f"at least {approx(least, 4)} nats about whether the worst record was there, against at most "
        f"{approx(most, 4)} under (0.5, 1e-5)-DP by Gaussian noise",
        witness=f"a channel that reveals with chance d = {decimal(chance, 6)} carries ln(1 + d (1-d)^((1-d)/d)); "
        f"Gaussian noise of multiplier {approx(noise, 6)} carries at most ln(1 + 1/(4 sigma^2)) / 2",
    )


def _one_nat(prover: Prover) -> Judgement:
    bit = log(2)
    published_whole = below(bit, 1)
    return Judgement(
        outcome=Outcome.REFUTED if published_whole else Outcome.INCONCLUSIVE,
        reason="whether a record was used is one bit, and a bit has ln 2 nats: a budget of 1 lets it be published",
        holds=f"from {approx(bit)} nats on nothing follows; 0.5 nats allow an advantage of "
        f"{approx(nats.advantage_allowed(_HALF))}",
        witness="publish the fair coin itself: ln 2 < 1 nats, advantage 1",
    )


def _half_nat(prover: Prover) -> Judgement:
    allowed = nats.advantage_allowed(_HALF)
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="ferret-half-nat",
            statement="0.5 nats about a fair bit allow an advantage of at most 0.1.",
            boxes={"advantage": allowed},
            term="advantage",
            bound=Fraction(1, 10),
        ),
    )
    return Judgement(
        outcome=outcome,
        reason="a bit told true nearly always stays within the budget" if outcome is Outcome.REFUTED else shows,
        holds=f"advantage {approx(allowed)}",
        witness=f"tell the coin truly with chance {decimal((1 + allowed.low) / 2, 8)}: ln 2 - h = 0.5 nats",
    )


def _dither(prover: Prover) -> Judgement:
    stddev, chance = Fraction(1, 100), nats.reveal(GROUPS, STEPS, RATE, _chance(_HALF))
    published = GROUPS * STEPS
    least = enclose(
        lambda: (
            (ball(chance.low - _DELTA) - published * normal_cdf(-1 / ball(stddev)))
            / (published * normal_cdf(-1 / ball(stddev)))
        ).log()
    )
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="ferret-dither",
            statement="With a dither of 0.01 on unit values, epsilon at delta 1e-5 is at most 8.",
            boxes={"epsilon": least},
            term="epsilon",
            bound=Fraction(8),
        ),
    )
    return Judgement(
        outcome=outcome,
        reason="the sign shows through: finite, but of no use" if outcome is Outcome.REFUTED else shows,
        holds=f"epsilon >= {approx(least, 6)} at delta 1e-5",
        witness=f"S: some value is above 0. P'(S) <= {published} Phi(-100), P(S) >= {decimal(chance.low, 6)} - P'(S)",
    )


PAPER = Paper(
    title="FERRET",
    claims=(
        PublishedClaim(
            key="ferret-budget",
            statement="G T s p ln 2 nats bound what its signs reveal of a record; p* is the largest p within a budget.",
            expected=Outcome.PROVED,
            judge=_budget,
        ),
        PublishedClaim(
            key="ferret-table-3",
            statement="Two groups reveal at most 6.93 nats, and p* is 0.072 for 0.5 nats (table 3).",
            expected=Outcome.PROVED,
            judge=_table,
        ),
        PublishedClaim(
            key="ferret-any-budget",
            statement="p* = epsilon / epsilon_max is a probability of publishing for any budget.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                theorems.fire_always_probability(),
                because="it exceeds 1 where the budget cannot be spent",
                holds="p* <= 1 exactly where epsilon <= G T s ln 2, proved",
                correct=theorems.fire_is_probability(),
            ),
        ),
        PublishedClaim(
            key="ferret-dp",
            statement="At 0.5 nats it is (epsilon, 1e-5)-DP for some epsilon.",
            expected=Outcome.REFUTED,
            judge=_worst_case,
        ),
        PublishedClaim(
            key="ferret-as-dp-sgd",
            statement="Epsilon 0.5 means the same for FERRET as for DP-SGD.",
            expected=Outcome.REFUTED,
            judge=_as_strong,
        ),
        PublishedClaim(
            key="ferret-1-nat",
            statement="A budget of 1 or 2 nats limits what an attacker learns about whether a record was used.",
            expected=Outcome.REFUTED,
            judge=_one_nat,
        ),
        PublishedClaim(
            key="ferret-half-nat",
            statement="A budget of 0.5 nats is strong: an attacker's advantage stays at 0.1 or below.",
            expected=Outcome.REFUTED,
            judge=_half_nat,
        ),
        PublishedClaim(
            key="ferret-dither",
            statement="A microscopic dither (0.01 on unit values) gives it a useful (8, 1e-5)-DP certificate.",
            expected=Outcome.REFUTED,
            judge=_dither,
        ),
        PublishedClaim(
            key="ferret-response",
            statement="What holds instead: a sign by randomized response of odds e^a is ln(1 + s (e^a - 1))-DP.",
            expected=Outcome.PROVED,
            judge=theorem_claim(theorems.response_on_batch(), because="all four ratios of likelihoods stay within it"),
        ),
    ),
    unchecked=(
        Omission(
            what="FERRET: equation 12, the Renyi bound of the dithered mechanism",
            reason="the formula is not printed in the copy at hand",
        ),
        Omission(what="FERRET: accuracy and speed", reason="they are measurements, not claims of privacy"),
    ),
)
