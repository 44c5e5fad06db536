"""DPQuant's measurements of layers: the published accounting, and what correct accounting requires.

As published (algorithm 1), every few epochs a loss difference for each choice of layers is measured on a batch of one
example; the vector is clipped to C and gets noise of standard deviation 0.5 C. The paper counts this as a sampled
Gaussian with noise multiplier 0.5 at sampling rate 1 / N, once for each epoch with measurements. That understates the
cost in three ways. The clipped vector is not one example's contribution to a sum but the whole vector, and one example
may reverse it: the sensitivity is 2 C, which halves the noise multiplier. Each repetition is a release. And the
training steps that are made for a measurement and then discarded use the data as well.
"""

from __future__ import annotations

from privctl.domain.checks import at_least
from privctl.domain.events import Ledger, SampledGaussian

#: Defaults: noise standard deviation / clip norm of a measurement, and examples in its batch.
NOISE_MULTIPLIER, BATCH_SIZE = 0.5, 1


def claimed_ledger(training: SampledGaussian, examples: int, releases: int) -> Ledger:
    """The training and ``releases`` measurements, accounted for as published."""
    return Ledger(events=(training, _measurements(NOISE_MULTIPLIER, examples, releases)))


def aggregate_ledger(training: SampledGaussian, examples: int, releases: int) -> Ledger:
    """The training and measurements with the sensitivity of the whole vector; discarded steps are not counted."""
    return Ledger(events=(training, _measurements(NOISE_MULTIPLIER / 2, examples, releases)))


def _measurements(noise_multiplier: float, examples: int, releases: int) -> SampledGaussian:
    at_least("examples", examples, 1)
    return SampledGaussian(noise_multiplier=noise_multiplier, sample_rate=BATCH_SIZE / examples, steps=releases)
