"""Public records whose gradient is added to the private one in each step (docs/mechanisms.md#public-data).

The optimizer gets the sum of both. The public gradient is a function of the public records, the index of the step and
the weights, which follow from noised sums, so adding it is post-processing and costs no privacy; that the records are
public is an assumption. Sources: Amid et al. 2022, "Public Data-Assisted Mirror Descent for Private Model Training",
whose first-order approximation is such a sum; Lowy, Li, Huang and Razaviyayn 2024, "Optimal Differentially Private
Model Training with Public Data", whose weight of the private gradient, alpha, is 1 / (1 + ``weight``).
"""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.ranges import AMOUNT_OR_ZERO, COUNT
from privctl.train.settings.choices import PublicOverlap

#: The default weight of the mean public gradient relative to the private one.
WEIGHT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicMixing:
    """Each step adds ``weight`` times the mean gradient of ``batch_size`` of the ``records`` public records.

    ``overlap`` is what to do if one of them is also among the private records. Raises ValueError, with the flag, for a
    number out of range and for a batch larger than the public data.
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
    """The assumptions about public records, which the guarantee does not cover."""
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
    """The report's parameters of the public records."""
    return {
        "public_weight": mixing.weight,
        "public_batch_size": mixing.batch_size,
        "public_examples": mixing.records,
        "public_overlap": mixing.overlap,
    }
