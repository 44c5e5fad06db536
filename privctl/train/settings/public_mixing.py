"""Public records whose gradient is added to the private one of each step (docs/mechanisms.md#public-data).

The sum is what goes to the optimizer. What is added is a function of public records, of the step's number and of
weights that follow from noised sums, so it is post-processing and costs nothing; that the records are public is an
assumption. Sources: Amid et al. 2022, "Public Data-Assisted Mirror Descent for Private Model Training", whose first
order is such a sum; Lowy, Li, Huang and Razaviyayn 2024, "Optimal Differentially Private Model Training with Public
Data". Their share of the private gradient, alpha, is 1 / (1 + ``weight``).
"""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.ranges import AMOUNT_OR_ZERO, COUNT
from privctl.train.settings.choices import PublicOverlap

#: How much the mean public gradient counts beside the private one by default.
WEIGHT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicMixing:
    """Each step adds ``weight`` times the mean gradient of ``batch_size`` of ``records`` public records.

    ``overlap`` is what was asked for should one of them stand among the private ones. Raises ValueError, naming the
    option, for a number out of its range, and for a batch of more records than there are.
    """

    weight: float
    batch_size: int
    records: int
    overlap: PublicOverlap = PublicOverlap.REFUSE

    def __post_init__(self) -> None:
        AMOUNT_OR_ZERO.require("--public-weight", self.weight)
        COUNT.require("--public-batch-size", self.batch_size)
        if self.batch_size > self.records:
            raise ValueError(
                f"--public-batch-size {self.batch_size} exceeds the public data, which holds {self.records} records"
            )


def public_assumptions(mixing: PublicMixing) -> tuple[Assumption, ...]:
    """What a guarantee rests on where public records take part, and whom it does not cover."""
    public = Assumption(
        name="public data",
        statement=f"the {mixing.records} public records were chosen without looking at the private ones, and nothing "
        f"in them needs protection: each step adds {mixing.weight} times the mean gradient of {mixing.batch_size} of "
        "them, neither clipped nor noised, and no guarantee covers them",
        state=AssumptionState.ASSERTED,
    )
    if mixing.overlap is PublicOverlap.KEEP:
        return (public,)
    apart = Assumption(
        name="separate public data",
        statement="no public record stands among the private ones: whole records were compared, texts but for case, "
        "white space and forms of letters, images and sounds number by number, so an altered copy or a part of a "
        "record is not found; with one found the run would have been refused, so neighbours are compared that differ "
        "in a record which is none of the public ones",
        state=AssumptionState.CHECKED,
    )
    return (public, apart)


def public_parameters(mixing: PublicMixing) -> dict[str, float | int | str]:
    """What a report says of public records that took part."""
    return {
        "public_weight": mixing.weight,
        "public_batch_size": mixing.batch_size,
        "public_examples": mixing.records,
        "public_overlap": mixing.overlap,
    }
