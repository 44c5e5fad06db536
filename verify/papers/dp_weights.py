"""DP-Weights: whether its noise gives the promised privacy, and whether training moves weights as it says.

N = 1000 examples, learning rate 5e-5, clip norm 1, delta = 1 / N^2 = 1e-6, and E epochs in batches of B. The noise is
that of its algorithm 2: sigma = sqrt(2 ln(1.25 / delta)) DW / epsilon + 0.00976 / epsilon^0.078008, with
DW = E eta C / (N B).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.dp_weights_composition import CLAIMS as COMPOSITION
from verify.papers.dp_weights_proof import CLAIMS as PROOF
from verify.papers.judging import judge_gaussian, theorem_claim
from verify.prove.enclosures.enclosure import Interval, ball, decimal, enclose
from verify.prove.library import weights
from verify.prove.prover import Prover

N, RATE, CLIP, DELTA = 1000, Fraction(5, 100_000), 1, Fraction(1, 10**6)
_GPT2 = 124_439_808


def published_shift(epochs: int, batch: int) -> Fraction:
    """DW = E eta C / (N B)."""
    return epochs * RATE * CLIP / (N * batch)


def published_stddev(epochs: int, batch: int, epsilon: Fraction) -> Interval:
    """The noise of algorithm 2. Example: E=10, B=5 and epsilon 1 give 0.00976052988025269."""
    shift = published_shift(epochs, batch)
    tail, power = Fraction("0.00976"), Fraction("0.078008")
    return enclose(
        lambda: (
            (2 * ball(Fraction(5, 4) / DELTA).log()).sqrt() * ball(shift / epsilon)
            + ball(tail) / ball(epsilon) ** ball(power)
        )
    )


def convex_shift(epochs: int, batch: int) -> Fraction:
    """2 E eta C / B, the largest distance of weights under convex, smooth losses if one example is replaced."""
    return 2 * epochs * RATE * CLIP / batch


def nonconvex_shift(epochs: int, batch: int) -> Fraction:
    """The final distance of two trainings that differ in one example, simulated in exact arithmetic.

    The losses are f(w) = -C |w|, except for the example in question: -C |w + 1| in one data set and -C |w - 1| in the
    other. Their gradients are bounded by C, and w starts at 0. The result is 2 eta C / B + 2 eta C (T - 1), which is an
    upper bound for all losses.
    """
    left = _walk(Fraction(1), epochs, batch)
    right = _walk(Fraction(-1), epochs, batch)
    return left - right


def _walk(kink: Fraction, epochs: int, batch: int) -> Fraction:
    """The final weight if the example in question, in the first batch of each epoch, has its kink at ``-kink``."""
    weight = Fraction(0)
    for step in range(epochs * N // batch):
        own_gradient = CLIP * _sign(weight + kink)
        other = CLIP * _sign(weight)
        total = own_gradient + (batch - 1) * other if step % (N // batch) == 0 else batch * other
        weight += RATE * total / batch
    return weight


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def _release(
    name: str, words: str, shift: Fraction, epochs: int, batch: int, epsilon: Fraction
) -> Callable[[Prover], Judgement]:
    def judge(prover: Prover) -> Judgement:
        stddev = published_stddev(epochs, batch, epsilon)
        # A proof must assume the least noise of the enclosure, and a refutation the most.
        judgement = judge_gaussian(prover, name, words, epsilon, DELTA, (shift / stddev.low) ** 2)
        if judgement.outcome is Outcome.REFUTED:
            judgement = judge_gaussian(prover, name, words, epsilon, DELTA, (shift / stddev.high) ** 2)
        return judgement

    return judge


def _worst_training(prover: Prover) -> Judgement:
    shift = nonconvex_shift(10, 5)
    words = f"two trainings on f(w) = -C|w|, one example replaced, end {shift} apart"
    return _release("weights-nonconvex-1", words, shift, 10, 5, Fraction(1))(prover)


def _adam(prover: Prover) -> Judgement:
    """The first step of Adam is eta times the sign of the gradient, whatever its clip norm."""
    distance, claimed = 2 * RATE, published_shift(1, N)
    holds = distance <= claimed
    return Judgement(
        outcome=Outcome.PROVED if holds else Outcome.REFUTED,
        reason="Adam divides a gradient by its own size: its first step is eta sign(g), so clipping bounds nothing",
        holds=f"2 eta = {decimal(distance)} per weight after one step, {decimal(distance**2 * _GPT2, 6)} squared over "
        "GPT-2",
        witness=f"one step on g = C and g = -C: {decimal(distance)} apart, where DW = {decimal(claimed)} (E=1, B=N)",
    )


def _own_condition(prover: Prover) -> Judgement:
    """The condition bounds epsilon by the least of three terms; (DW^2 / 0.000191)^(1 / 1.844) alone refutes it."""
    limit = enclose(lambda: ball(published_shift(10, 5) ** 2 / Fraction("0.000191")) ** (1 / ball(Fraction("1.844"))))
    met = Fraction(1, 100) <= limit.high
    return Judgement(
        outcome=Outcome.INCONCLUSIVE if met else Outcome.REFUTED,
        reason="one of the three terms whose least bounds epsilon is already below every epsilon of the experiments",
        holds=f"epsilon <= {decimal(limit.high, 5)} by this term alone for E=10, B=5; the others can only lower it",
        witness=f"(DW^2 / 0.000191)^(1/1.844) with DW = 1e-7 is {limit}; the least epsilon tried is 0.01",
    )


_CLAIMS = (
    PublishedClaim(
        key="dpw-convex-1",
        statement="Its noise for epsilon 1 gives (1, 1e-6)-DP (E=10, B=5; plain SGD, convex losses of smoothness up to "
        "2 / eta, clipping idle).",
        expected=Outcome.PROVED,
        judge=_release(
            "weights-convex-1", "weights at most 2 E eta C / B = 2e-4 apart", convex_shift(10, 5), 10, 5, Fraction(1)
        ),
    ),
    PublishedClaim(
        key="dpw-convex-0.01",
        statement="Its noise for epsilon 0.01 gives (0.01, 1e-6)-DP (the same training).",
        expected=Outcome.REFUTED,
        judge=_release(
            "weights-convex-0.01",
            "linear losses put the weights 2 E eta C / B = 2e-4 apart",
            convex_shift(10, 5),
            10,
            5,
            Fraction(1, 100),
        ),
    ),
    PublishedClaim(
        key="dpw-nonconvex-1",
        statement="Its noise for epsilon 1 gives (1, 1e-6)-DP (E=10, B=5; any model, plain SGD).",
        expected=Outcome.REFUTED,
        judge=_worst_training,
    ),
    PublishedClaim(
        key="dpw-assumed-shift",
        statement="If one example moves the weights by at most DW = 1e-7, its noise gives (1, 1e-6)-DP.",
        expected=Outcome.PROVED,
        judge=_release("weights-assumed-shift", "weights DW = 1e-7 apart", published_shift(10, 5), 10, 5, Fraction(1)),
    ),
    PublishedClaim(
        key="dpw-sensitivity",
        statement="DW = E eta C / (N B) bounds how far one example moves the weights.",
        expected=Outcome.REFUTED,
        judge=theorem_claim(
            weights.published_shift_bounds_motion(),
            holds="E eta C / B for one left out, 2 E eta C / B for one replaced (convex); nothing gives 1 / N",
            because="E visits move the weights by eta C / B each",
            correct=weights.motion_without_n(),
        ),
    ),
    PublishedClaim(
        key="dpw-l2",
        statement="A bound on every weight's change is a bound on the L2 sensitivity.",
        expected=Outcome.REFUTED,
        judge=theorem_claim(
            weights.coordinates_bound_norm(2),
            holds="sqrt(d) times the bound: 11155 times it for GPT-2's 124439808 weights",
            because="d coordinates of size D make a vector of length up to sqrt(d) D",
            correct=weights.coordinates_bound_norm(1),
        ),
    ),
    PublishedClaim(
        key="dpw-adam",
        statement="DW bounds how far one example moves the weights when training with AdamW.",
        expected=Outcome.REFUTED,
        judge=_adam,
    ),
    PublishedClaim(
        key="dpw-own-condition",
        statement="The epsilons of its experiments (0.01 to 1000) meet its own final condition.",
        expected=Outcome.REFUTED,
        judge=_own_condition,
    ),
)

PAPER = Paper(
    title="DP-Weights",
    claims=(*_CLAIMS, *PROOF, *COMPOSITION),
    unchecked=(
        Omission(
            what="DP-Weights: the fitted tail 0.00976 / epsilon^0.078008",
            reason="it is fitted to experiments, and claims nothing that could be proved",
        ),
        Omission(
            what="DP-Weights: its Renyi section",
            reason="it applies amplification by sampling to noise that is added once, after all data were used; "
            "no mechanism is stated that could be judged",
        ),
    ),
)
