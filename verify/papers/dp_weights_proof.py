"""DP-Weights: the steps of its proof, and the solver script that it offers as evidence."""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, PublishedClaim
from verify.papers.judging import gaussian_claim, theorem_claim
from verify.prove.enclosures.enclosure import decimal
from verify.prove.enclosures.functions import exp
from verify.prove.library import weights
from verify.prove.prover import Prover
from verify.prove.terms import evaluate
from verify.prove.theorem import SolverFinding

_STDDEV = Fraction("0.00976053")


def taylor_exp(x: Fraction, terms: int = 10) -> Fraction:
    """The published script's exponential. Example: -4.5 gives -0.64977."""
    total, term = Fraction(0), Fraction(1)
    for n in range(terms):
        total += term
        term = term * x / (n + 1)
    return total


def _series(prover: Prover) -> Judgement:
    values = [(z, taylor_exp(Fraction(-z * z, 2))) for z in (1, 2, 3, 4, 5)]
    negative = [(z, value) for z, value in values if value < 0]
    # Checks that the term given to the solver equals the sum above.
    text = weights.taylor_exp("u")
    same = all(evaluate(f"(= {text} r)", {"u": Fraction(-z * z, 2), "r": value}) for z, value in values)
    return Judgement(
        outcome=Outcome.REFUTED if negative and same else Outcome.INCONCLUSIVE,
        reason="ten terms of the series turn negative three standard deviations out, where a density cannot",
        holds=f"exp(-9/2) = {exp(Fraction(-9, 2))}",
        witness="; ".join(f"TaylorExp(-{Fraction(z * z, 2)}) = {decimal(value, 6)}" for z, value in negative),
    )


def _script(prover: Prover) -> Judgement:
    """The published encoding asks whether an implication is satisfiable; so are its negation and absurd variants."""
    published = weights.published_implication("published", Fraction(1), Fraction(1, 10**6), Fraction(1, 10**7), _STDDEV)
    absurd = weights.published_implication("absurd", Fraction(1, 10**9), Fraction(0), Fraction(10**6), _STDDEV)
    answers = [prover.satisfiable(theorem.claim) for theorem in (published, absurd)]
    negation = prover.prove(published)
    if None in answers or negation.finding is SolverFinding.UNDECIDED:
        return Judgement(outcome=Outcome.INCONCLUSIVE, reason="the solver did not answer in time")
    expected = ["sat" if answer else "unsat" for answer in answers]
    proves_nothing = answers == [True, True] and negation.finding is SolverFinding.REFUTED
    return Judgement(
        outcome=Outcome.REFUTED if proves_nothing else Outcome.INCONCLUSIVE,
        reason="vacuous: it adds an implication and asks whether that can hold, as any can whose premise may fail",
        holds=f"the script says {expected[0]}; for epsilon 1e-9, delta 0 and DW 1e6 it says {expected[1]}; "
        f"for the negation {'sat' if negation.finding is SolverFinding.REFUTED else 'unsat'} as well",
        witness=f"the negation at {negation.witness} (V is W'; W = W', and the series makes the density negative)",
    )


CLAIMS = (
    PublishedClaim(
        key="dpw-step-5",
        statement="Step 5: the densities' ratio at the output has exponent (N^2 - N^2) / (2 sigma^2).",
        expected=Outcome.REFUTED,
        judge=theorem_claim(
            weights.printed_exponent(),
            holds="(2 N (W - W') + (W - W')^2) / (2 sigma^2), proved",
            because="it puts W + N into one density, W' + N into the other: one output is one place (V is W', x is N)",
            correct=weights.corrected_exponent(),
        ),
    ),
    PublishedClaim(
        key="dpw-step-5-bound",
        statement="Step 5: the privacy loss is at most DW^2 / (2 sigma^2).",
        expected=Outcome.REFUTED,
        judge=theorem_claim(
            weights.printed_bound(),
            holds="the loss is normal with mean mu^2/2 and variance mu^2: no number bounds it",
            because="that is the loss's mean (V is W', x is the noise)",
            correct=weights.corrected_exponent(),
        ),
    ),
    PublishedClaim(
        key="dpw-mean-loss",
        statement="Noise with DW^2 / (2 sigma^2) <= epsilon gives (epsilon, 1e-6)-DP (here epsilon 1).",
        expected=Outcome.REFUTED,
        judge=gaussian_claim("weights-mean-loss", "at mu^2/2 = epsilon", 1, Fraction(1, 10**6), Fraction(2)),
    ),
    PublishedClaim(
        key="dpw-classical",
        statement="sqrt(2 ln(1.25/delta)) / epsilon is enough noise at every epsilon it uses (here 10).",
        expected=Outcome.REFUTED,
        judge=lambda prover: _classical(prover, 10),
    ),
    PublishedClaim(
        key="dpw-classical-8",
        statement="The same at epsilon 8.",
        expected=Outcome.PROVED,
        judge=lambda prover: _classical(prover, 8),
    ),
    PublishedClaim(
        key="dpw-series",
        statement="Ten terms of the exponential series can replace the normal density in its solver script.",
        expected=Outcome.REFUTED,
        judge=_series,
    ),
    PublishedClaim(
        key="dpw-script",
        statement='Its solver script, which prints "sat", proves (epsilon, delta)-DP.',
        expected=Outcome.REFUTED,
        judge=_script,
    ),
)


def _classical(prover: Prover, epsilon: int) -> Judgement:
    from verify.papers.judging import judge_gaussian
    from verify.prove.enclosures.enclosure import ball, enclose

    delta = Fraction(1, 10**6)
    squared = enclose(lambda: epsilon**2 / (2 * ball(Fraction(5, 4) / delta).log()))
    words = f"shift epsilon / sqrt(2 ln(1.25/delta)) at epsilon {epsilon}"
    judgement = judge_gaussian(prover, f"weights-classical-{epsilon}", words, epsilon, delta, squared.high)
    if judgement.outcome is Outcome.REFUTED:
        judgement = judge_gaussian(prover, f"weights-classical-{epsilon}", words, epsilon, delta, squared.low)
    return judgement
