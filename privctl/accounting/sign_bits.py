"""Guarantees of published signs (FERRET): an average case in nats, and a refutation in the worst case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from privctl.accounting import mutual_information
from privctl.domain.events import Batches, Ledger, RandomizedResponse, SampledGaussian, SignBits
from privctl.domain.guarantee import (
    Adjacency,
    Assumption,
    Guarantee,
    Notion,
    Risk,
    RiskMeasure,
    Status,
    status_of,
)


def average_case(event: SignBits, assumptions: Sequence[Assumption]) -> Guarantee:
    """The mutual information that ``event`` publishes about one example, and what an attacker can achieve with it.

    ``assumptions`` are those that it rests on, including that masks and directions do not depend on the data.
    """
    nats = mutual_information.nats(event)
    return Guarantee(
        name="mutual information (MI-DP)",
        epsilon=nats,
        delta=0.0,
        notion=Notion.MUTUAL_INFORMATION,
        adjacency=Adjacency.REPLACE_ONE,
        accountant="Cuff and Yu 2016, one bit a fired group and step, in nats",
        status=status_of(assumptions),
        assumptions=tuple(assumptions),
        note="an average over the data, not a worst case; from ln 2 = 0.693 nats on it rules nothing out"
        + ("; at so many, nothing is guaranteed" if nats >= math.log(2) else ""),
        risks=(
            Risk(measure=RiskMeasure.ADVANTAGE, bound=mutual_information.total_variation(nats)),
            Risk(measure=RiskMeasure.AUC, bound=mutual_information.auc(nats)),
        ),
    )


def worst_case_delta(event: SignBits, batches: Batches) -> float:
    """The worst-case delta, at every epsilon, for Poisson or shuffled batches."""
    if batches is Batches.POISSON:
        return mutual_information.worst_case_delta_poisson(event)
    return mutual_information.worst_case_delta_shuffled(event)


def worst_case(event: SignBits, delta: float, batches: Batches) -> Guarantee | None:
    """The refuted guarantee of (epsilon, delta)-DP, for every epsilon; None if ``delta`` is too large to be refuted."""
    least = worst_case_delta(event, batches)
    if least <= delta:
        return None
    return Guarantee(
        name=f"(epsilon, {delta:g})-DP, {'Poisson' if batches is Batches.POISSON else batches} batches",
        epsilon=None,
        delta=delta,
        adjacency=Adjacency.REPLACE_ONE,
        accountant="one record that decides the sign of its batch",
        status=Status.REFUTED,
        note=f"no epsilon, however large, holds with a delta below {least:.6g}",
    )


def dithered_ledger(sizes: Mapping[int, int], noise_multiplier: float, sample_rate: float) -> Ledger:
    """The ledger for signs of derivatives in [-c, c] plus noise of ``noise_multiplier`` c, on Poisson batches.

    ``sizes`` maps the number of groups that publish in a step to the number of such steps. An example changes each of F
    derivatives by at most 2 c, and their vector by 2 c sqrt(F): a sampled Gaussian with noise multiplier
    sigma / (2 sqrt(F)). Counting the F separately would ignore that they use the same batch.
    """
    events = (
        SampledGaussian(noise_multiplier=noise_multiplier / (2 * math.sqrt(size)), sample_rate=sample_rate, steps=steps)
        for size, steps in sizes.items()
    )
    return Ledger(events=tuple(events))


def response_ledger(sizes: Mapping[int, int], bit_epsilon: float, sample_rate: float) -> Ledger:
    """The ledger for signs kept with log-odds ``bit_epsilon``; batches and ``sizes`` as in ``dithered_ledger``."""
    events = (
        RandomizedResponse(epsilon=bit_epsilon, bits=size, sample_rate=sample_rate, steps=steps)
        for size, steps in sizes.items()
    )
    return Ledger(events=tuple(events))


def gaussian_ledger(sizes: Mapping[int, int], noise_multiplier: float, sample_rate: float) -> Ledger:
    """The ledger for noisy sums of clipped derivative vectors: one sampled Gaussian per step that publishes."""
    event = SampledGaussian(
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=sum(sizes.values()), batches=Batches.POISSON
    )
    return Ledger(events=(event,))
