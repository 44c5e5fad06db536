"""Steps with banded correlated noise; ``privctl.domain.events`` lists the event."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.domain.event import Batches, Event, EventOption
from privctl.domain.event_fields import Chance, Positive, Steps
from privctl.domain.ranges import BANDS

#: The largest magnitude of a coefficient; the first must be at least its inverse.
_LARGEST = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class BandedGaussian(Event):
    """Gaussian noise on C X, where row t of X is the sum of clipped contributions of step t (DP-MF with a banded C).

    C is the lower triangular Toeplitz matrix whose columns are ``coefficients`` from the diagonal down. Noise of
    ``noise_multiplier`` clip norms on C X is noise C^-1 Z on X. Batches are ``Batches.CYCLIC_POISSON`` with as many
    parts as there are bands; ``sample_rate`` is the probability that a step draws an example, averaged over parts, so
    an example of the part whose turn it is takes part with probability ``rates[0]``. The bounds hold even against an
    attacker who knows every example's part.

    Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta and Xu 2023, "(Amplified) Banded Matrix
    Factorization"; docs/mechanisms.md#correlated-noise.
    """

    tag = "banded-gaussian"
    mechanism = "banded"
    options = (
        EventOption(
            name="bands",
            help="banded: steps over which noise is correlated, and parts of the data that take turns.  [default: the "
            "best of 1, 2, 4, ...]",
            kind=int,
            within=BANDS,
        ),
    )

    noise_multiplier: Positive
    coefficients: tuple[float, ...]
    sample_rate: Chance = 1.0
    steps: Steps = 1

    def _check_together(self) -> None:
        if not 1 <= len(self.coefficients) <= BANDS.high:
            raise ValueError(f"coefficients are {len(self.coefficients)}; there must be 1 to {BANDS.high:g}")
        if not all(math.isfinite(value) and abs(value) <= _LARGEST for value in self.coefficients):
            raise ValueError(f"coefficients holds a number that is not finite, or beyond {_LARGEST:g}")
        if self.coefficients[0] < 1 / _LARGEST:
            raise ValueError(f"coefficients begins with {self.coefficients[0]:g}, which no noise can be divided by")

    @property
    def bands(self) -> int:
        """The number of bands: also the distance between steps in which an example may take part."""
        return len(self.coefficients)

    @property
    def visits(self) -> int:
        """The maximum number of steps in which one example may take part."""
        return -(-self.steps // self.bands)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: in the steps of its part."""
        return (min(1.0, self.sample_rate * self.bands),)

    @property
    def batches_needed(self) -> Batches | None:
        """See ``Event``: parts must take turns even if a batch holds a whole part."""
        if self.bands > 1:
            return Batches.CYCLIC_POISSON
        return Batches.POISSON if self.sample_rate < 1 else None

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``: for columns of norm 1."""
        return self.noise_multiplier

    @property
    def caption(self) -> str:
        """See ``Event``."""
        return (
            f"{self.steps:,} step{'s' * (self.steps != 1)} with noise correlated over {self.bands}, rate "
            f"{self.sample_rate:.6g}, noise multiplier {self.noise_multiplier:.6g}"
        )
