"""DPQuant: noisy loss measurements decide which layers are quantized; N=50000, batches of 1024, delta 1e-5."""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import gaussian_claim, theorem_claim
from verify.papers.sampling import judge_floor
from verify.prove.library import quantizer
from verify.prove.prover import Prover

_DELTA = Fraction(1, 10**5)
_NOISE, _BATCH_RATE, _MEASUREMENTS = Fraction(1, 2), Fraction(1024, 50_000), 30
_NEGLIGIBLE = Fraction(1, 10)


def _measurements(prover: Prover) -> Judgement:
    words = "30 measurements of noise 0.5 on Poisson batches of rate 0.02048, clipped example by example"
    return judge_floor(prover, "dpquant-batch", words, (_NOISE, _BATCH_RATE, _MEASUREMENTS), _DELTA, _NEGLIGIBLE)


def _aggregate(prover: Prover) -> Judgement:
    words = "the same, clipped after averaging, so that noise 0.5 is worth 0.25"
    noise = (_NOISE / 2, _BATCH_RATE, _MEASUREMENTS)
    return judge_floor(prover, "dpquant-aggregate", words, noise, _DELTA, _NEGLIGIBLE)


PAPER = Paper(
    title="DPQuant",
    claims=(
        PublishedClaim(
            key="dpq-clip",
            statement="Clipping the averaged loss differences to C makes their sensitivity C.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                quantizer.clipped_aggregate(1),
                because="a clipped aggregate may turn round: noise sigma is worth sigma / 2",
                holds="2 C, proved",
                correct=quantizer.clipped_aggregate(2),
            ),
        ),
        PublishedClaim(
            key="dpq-negligible",
            statement="Its measurements cost next to nothing (epsilon at most 0.1), here on training batches.",
            expected=Outcome.REFUTED,
            judge=_measurements,
        ),
        PublishedClaim(
            key="dpq-aggregate",
            statement="The same, clipping the average.",
            expected=Outcome.REFUTED,
            judge=_aggregate,
        ),
        PublishedClaim(
            key="dpq-all-data",
            statement="The same, with losses of all the data.",
            expected=Outcome.REFUTED,
            judge=gaussian_claim(
                "dpquant-all-data",
                "30 measurements of noise 0.5 on all data are one Gaussian of shift sqrt(30) / 0.5",
                _NEGLIGIBLE,
                _DELTA,
                _MEASUREMENTS / _NOISE**2,
            ),
        ),
        PublishedClaim(
            key="dpq-repetitions",
            statement="Two repetitions of a measurement cost the same as one (epsilon 10 at noise 0.5, all data).",
            expected=Outcome.REFUTED,
            judge=gaussian_claim(
                "dpquant-repetitions", "two of shift 2 are one of shift sqrt(8)", 10, _DELTA, 2 / _NOISE**2
            ),
        ),
        PublishedClaim(
            key="dpq-one-measurement",
            statement="One measurement of noise 0.5 on all data costs epsilon 10.",
            expected=Outcome.PROVED,
            judge=gaussian_claim("dpquant-one", "one of shift 2", 10, _DELTA, 1 / _NOISE**2),
        ),
        PublishedClaim(
            key="dpq-unbiased",
            statement="Its quantizers (LUQ-FP4, uniform INT4) round without bias.",
            expected=Outcome.PROVED,
            judge=theorem_claim(quantizer.unbiased(), because="between any two levels, up with the share of the way"),
        ),
        PublishedClaim(
            key="dpq-nearest",
            statement="Rounding to the nearest level would be unbiased too.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                quantizer.nearest_unbiased(), because="it is off by up to half a bin", correct=quantizer.unbiased()
            ),
        ),
        PublishedClaim(
            key="dpq-variance",
            statement="Proposition 1: variance grows as the largest magnitude squared (top bin: at most M^2 / 16).",
            expected=Outcome.PROVED,
            judge=theorem_claim(quantizer.variance_at_most(16), because="(high - x)(x - low) is most in the middle"),
        ),
    ),
    unchecked=(
        Omission(
            what="DPQuant: algorithm 1 as a whole",
            reason="it is not printed in the copy at hand; how its probe steps touch data decides what they cost",
        ),
        Omission(
            what="DPQuant: its total for |B| = 1 and clipping by example",
            reason="that needs a tight accountant, whose work is recomputed elsewhere; an event shows no violation",
        ),
    ),
)
