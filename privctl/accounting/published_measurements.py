"""How DPQuant accounts for its measurements of layers, and what follows for them as it makes them.

As published (algorithm 1), every few epochs a loss difference for each choice of layers is measured on a batch of one
example, the vector clipped to C and noised with standard deviation 0.5 C: a sampled Gaussian with noise multiplier 0.5
at sampling rate 1 / N, it is said, once for each epoch that measures. That takes more than is there. What is clipped is
not an example's contribution to a sum but the whole vector, which one example may turn around: its sensitivity is 2 C
and the noise multiplier half. Each repetition is a release. And the steps that are trained between two measurements,
and thrown away, see the data as well.
"""

from __future__ import annotations

from privctl.domain.checks import at_least
from privctl.domain.events import Ledger, SampledGaussian

#: Noise standard deviation / clip norm of a measurement, and examples in its batch, by default.
NOISE_MULTIPLIER, BATCH_SIZE = 0.5, 1


def claimed_ledger(training: SampledGaussian, examples: int, releases: int) -> Ledger:
    """The training with ``releases`` measurements as published accounts for them."""
    return Ledger(events=(training, _measured(NOISE_MULTIPLIER, examples, releases)))


def aggregate_ledger(training: SampledGaussian, examples: int, releases: int) -> Ledger:
    """The same with the sensitivity that clipping the whole vector leaves; steps that are thrown away not counted."""
    return Ledger(events=(training, _measured(NOISE_MULTIPLIER / 2, examples, releases)))


def _measured(noise_multiplier: float, examples: int, releases: int) -> SampledGaussian:
    at_least("examples", examples, 1)
    return SampledGaussian(noise_multiplier=noise_multiplier, sample_rate=BATCH_SIZE / examples, steps=releases)
