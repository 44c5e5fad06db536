"""Guarantees of published signs (FERRET): an average case in nats, and why none follows in the worst case."""

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

    ``assumptions`` are those that it rests on, among them masks and directions that do not depend on the data.
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
    """The delta, at every epsilon, in the worst case; of Poisson or of shuffled batches."""
    if batches is Batches.POISSON:
        return mutual_information.worst_case_delta_poisson(event)
    return mutual_information.worst_case_delta_shuffled(event)


def worst_case(event: SignBits, delta: float, batches: Batches) -> Guarantee | None:
    """The refuted (epsilon, delta)-DP, whatever epsilon; None where ``delta`` is so large that nothing refutes it."""
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
    """Signs of derivatives within +-c plus noise of ``noise_multiplier`` c, each batch Poisson.

    ``sizes`` says in how many steps (values) how many groups (keys) publish. An example moves each of F derivatives by
    2 c at most, all of them by 2 c sqrt(F): a sampled Gaussian of noise multiplier sigma / (2 sqrt(F)). Counting the F
    one by one would ignore that they see the same batch.
    """
    events = (
        SampledGaussian(noise_multiplier=noise_multiplier / (2 * math.sqrt(size)), sample_rate=sample_rate, steps=steps)
        for size, steps in sizes.items()
    )
    return Ledger(events=tuple(events))


def response_ledger(sizes: Mapping[int, int], bit_epsilon: float, sample_rate: float) -> Ledger:
    """Signs kept with log-odds ``bit_epsilon``, each batch Poisson; ``sizes`` as in ``dithered_ledger``."""
    events = (
        RandomizedResponse(epsilon=bit_epsilon, bits=size, sample_rate=sample_rate, steps=steps)
        for size, steps in sizes.items()
    )
    return Ledger(events=tuple(events))


def gaussian_ledger(sizes: Mapping[int, int], noise_multiplier: float, sample_rate: float) -> Ledger:
    """Noise on sums of clipped vectors of derivatives: one sampled Gaussian a step in which anything publishes."""
    event = SampledGaussian(
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=sum(sizes.values()), batches=Batches.POISSON
    )
    return Ledger(events=(event,))
