"""Hush: protecting secrets that occur in several records, by a divergence and Fano's inequality."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import approx, judgement_of
from verify.prove.enclosures.enclosure import Interval, Rational, ball, decimal, enclose
from verify.prove.enclosures.information import divergence, posterior
from verify.prove.enclosures.mixture import mixture_divergence, two_contents_advantage
from verify.prove.library import information as theorems
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.library.programs import WeightProgram, no_better, solve
from verify.prove.prover import Prover

_PRIOR = Fraction(1, 2)
#: Tolerance for the rounding of a solution's weights and prices, each by less than 2^-40.
_ROUNDED = Fraction(1, 2**30)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A step with a secret of two possible contents: its records' sampling probabilities, and the noise multiplier."""

    chances: tuple[Fraction, ...]
    multiplier: Fraction

    def success(self) -> Interval:
        """The success probability of the best guess, (1 + advantage) / 2 of a test by the output's sign."""
        advantage = two_contents_advantage(self.chances, self.multiplier)
        return Interval(low=(1 + advantage.low) / 2, high=(1 + advantage.high) / 2)

    def bound(self) -> Interval:
        """Fano's bound from the divergence relative to the secret's absence."""
        return posterior(mixture_divergence(self.chances, self.multiplier).high, _PRIOR)


_CASES = (
    _Case(chances=(Fraction(1),), multiplier=Fraction(1)),
    _Case(chances=(Fraction(3, 10),), multiplier=Fraction(7, 10)),
    _Case(chances=(Fraction(3, 10),) * 3, multiplier=Fraction(1)),
    _Case(chances=(Fraction(1, 100),), multiplier=Fraction(1, 2)),
)


def _fano(prover: Prover) -> Judgement:
    return judgement_of(
        prover.prove(theorems.divergence_grows()),
        because="kl(p, r) grows with p, so a divergence below kl(p, r) leaves no posterior above p; cited, not proved: "
        "that being right or wrong tells no more than the output does (data processing)",
        holds=f"kl(0.1, 0.001) = {approx(divergence(Fraction(1, 10), Fraction(1, 1000)), 12)} nats",
    )


def _bounds_success(prover: Prover) -> Judgement:
    pairs = [(case.success(), case.bound()) for case in _CASES]
    return Judgement(
        outcome=Outcome.CONSISTENT if all(s.high <= b.low for s, b in pairs) else Outcome.REFUTED,
        reason="in every case tried the best guess stays below; that it always does is a theorem with a proof on paper",
        holds=f"success {', '.join(approx(s, 6) for s, _ in pairs)} under bounds "
        f"{', '.join(approx(b, 6) for _, b in pairs)}",
        witness="two contents, one look: records drawn with chances 1; 0.3; 0.3 x3; 0.01 at noise 1; 0.7; 1; 0.5",
    )


def _tight(prover: Prover) -> Judgement:
    case = _CASES[0]
    success, bound = case.success(), case.bound()
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="hush-tight",
            statement="Fano's bound exceeds the best guess's chance by at most 0.01.",
            boxes={"fano": bound, "success": success},
            term="(- fano success)",
            bound=Fraction(1, 100),
        ),
    )
    shift = enclose(lambda: (2 * ball(divergence(Fraction(1, 10), Fraction(1, 1000)).high)).sqrt())
    sharper = _blow_up(Fraction(1, 1000), shift.high)
    return Judgement(
        outcome=outcome,
        reason="a guess gains less than its information allows" if outcome is Outcome.REFUTED else shows,
        holds=f"success {approx(success)}, Fano {approx(bound)}; from prior 0.001 at 0.3666 nats of one Gaussian, "
        f"{approx(sharper, 4)} where Fano says 0.1",
        witness="one record, noise 1, two contents: Phi(1) against the p with ln 2 - h(p) = 1/2",
    )


def _blow_up(prior: Rational, shift: Fraction) -> Interval:
    """Phi(Phi^-1(prior) + shift), the power of the best test of two Gaussians at false positive rate ``prior``."""
    from flint import arb

    def power() -> arb:
        quantile = -arb(2).sqrt() * (1 - 2 * ball(prior)).erfinv()
        return (1 + ((quantile + ball(shift)) / arb(2).sqrt()).erf()) / 2

    return enclose(power, bits=60)


def _pairwise(prover: Prover) -> Judgement:
    absent = mixture_divergence((Fraction(1),), 1)
    # N(1, 1) and N(-1, 1): shift 2.
    swapped = Fraction(2**2, 2)
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="hush-pairwise",
            statement="The divergence of two contents of a secret is at most that of a content and its absence.",
            boxes={"absent": absent},
            term=f"(- {swapped}.0 absent)",
            bound=Fraction(0),
        ),
    )
    return Judgement(
        outcome=outcome,
        reason="two contents may pull the sum opposite ways" if outcome is Outcome.REFUTED else shows,
        holds=f"{swapped} nats for a replaced record, {approx(absent, 6)} for one left out; the lemma holds with the "
        "latter if every content is compared with the same reference, which needs no pairs",
        witness="one record, noise 1: KL(N(1,1) || N(-1,1)) = 2, KL(N(1,1) || N(0,1)) = 1/2",
    )


def _protected(prover: Prover) -> Judgement:
    chances, steps = (Fraction(5, 1000),) * 10, 500
    spent, allowed = mixture_divergence(chances, Fraction("1.378")), divergence(Fraction(1, 5), Fraction(1, 100))
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="hush-protected",
            statement="500 steps at noise 1.378 spend at most kl(0.2, 0.01) nats on a secret in ten records.",
            boxes={"step": spent, "allowed": allowed},
            term=f"(- (* {steps}.0 step) allowed)",
            bound=Fraction(0),
        ),
    )
    return Judgement(
        outcome=outcome,
        reason="the divergences of steps add up (chain rule)" if outcome is Outcome.PROVED else shows,
        holds=f"{approx(Interval(low=steps * spent.low, high=steps * spent.high), 8)} nats spent, "
        f"{approx(allowed, 8)} allowed",
    )


def weights_example() -> WeightProgram:
    """A small instance: 24 examples, 6 secrets with overlapping records, and budgets from 3/10 to 3/2."""
    sets = tuple(tuple(sorted({(5 * j + k * k) % 24 for k in range(8)})) for j in range(6))
    return WeightProgram(examples=24, sets=sets, budgets=tuple(Fraction(3 * (1 + j % 5), 10) for j in range(6)))


def _weights(prover: Prover) -> Judgement:
    program = weights_example()
    solution = solve(program)
    if solution.bound - solution.value > _ROUNDED:
        return Judgement(
            outcome=Outcome.INCONCLUSIVE,
            reason=f"a feasible sum of {decimal(solution.value)} was found, and {decimal(solution.bound)} is not "
            "excluded",
        )
    return judgement_of(
        prover.prove(no_better(program, solution.bound)),
        because="prices for the budgets bound every choice of weights from above",
        holds=f"a feasible sum of {decimal(solution.value)}, none above {decimal(solution.bound)}",
    )


PAPER = Paper(
    title="Hush",
    claims=(
        PublishedClaim(
            key="hush-fano",
            statement="A divergence of at most kl(p, r) keeps every posterior at or below p, for priors up to r.",
            expected=Outcome.PROVED,
            judge=_fano,
        ),
        PublishedClaim(
            key="hush-success",
            statement="Accounting for a secret's absence bounds guesses among its possible values.",
            expected=Outcome.CONSISTENT,
            judge=_bounds_success,
        ),
        PublishedClaim(
            key="hush-tight",
            statement="An attacker reaches the posterior that it prints, within 0.01.",
            expected=Outcome.REFUTED,
            judge=_tight,
        ),
        PublishedClaim(
            key="hush-pairwise",
            statement="The divergence between a value and none bounds that between two values, as lemma 3.2 requires.",
            expected=Outcome.REFUTED,
            judge=_pairwise,
        ),
        PublishedClaim(
            key="hush-protected",
            statement="Noise 1.378 on 10 records at rate 0.005 for 500 steps keeps a posterior from prior 0.01 at 0.2.",
            expected=Outcome.PROVED,
            judge=_protected,
        ),
        PublishedClaim(
            key="hush-weights",
            statement="Its linear program finds the sampling weights of the largest sum (24 examples, 6 secrets).",
            expected=Outcome.PROVED,
            judge=_weights,
        ),
    ),
    unchecked=(
        Omission(
            what="Hush: divergences read off a discretized privacy loss distribution's mean",
            reason="library and grid are not in the paper; such a mean is no bound, and was found too low for an added "
            "record",
        ),
    ),
)
