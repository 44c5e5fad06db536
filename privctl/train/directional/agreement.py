"""How often two methods agree on the signs of derivatives, for reports on finite differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.train.directional.derivatives import Derivatives
from privctl.train.directional.difference import rounding
from privctl.train.directional.passes import Losses, Randomness
from privctl.train.directional.queries import FiredGroup, queries_for
from privctl.train.settings.choices import DerivativeMethod

if TYPE_CHECKING:
    from torch import Tensor

#: The noise floor in standard deviations.
_DEVIATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SignAgreement:
    """Of ``count`` derivatives, ``equal`` have the same sign; of ``above`` over the noise floor, ``equal_above`` do.

    Values that are not finite are ignored. The floor is three standard deviations of a finite difference's rounding
    error. ``error`` is the median of |difference - derivative| / |derivative|.
    """

    count: int = 0
    equal: int = 0
    above: int = 0
    equal_above: int = 0
    error: float = 0.0

    @property
    def share(self) -> float:
        """The fraction of all signs that are equal; 1 if there are none."""
        return self.equal / self.count if self.count else 1.0

    @property
    def share_above(self) -> float:
        """The fraction of signs above the noise floor that are equal; 1 if there are none."""
        return self.equal_above / self.above if self.above else 1.0

    def __add__(self, another: SignAgreement) -> SignAgreement:
        """The counts of both together; the error is their mean, weighted by count."""
        count = self.count + another.count
        mean = (self.error * self.count + another.error * another.count) / count if count else 0.0
        return SignAgreement(
            count=count,
            equal=self.equal + another.equal,
            above=self.above + another.above,
            equal_above=self.equal_above + another.equal_above,
            error=mean,
        )


def agreement(
    derivatives: Derivatives,
    losses_of: Losses,
    fired: Sequence[FiredGroup],
    directions: Sequence[Mapping[str, Tensor]],
) -> SignAgreement:
    """Compare a batch's ``derivatives`` with exact ones; three more passes measure the rounding.

    The random state is restored.
    """
    randomness = Randomness(next(derivatives.network.parameters()).device)
    differences = derivatives.batch(losses_of, fired, directions)
    randomness.rewind()
    exact = Derivatives(derivatives.network, DerivativeMethod.PARTIAL).batch(losses_of, fired, directions)
    randomness.rewind()
    noise = rounding(losses_of, queries_for(derivatives.network, fired, directions), derivatives.step)
    randomness.rewind()
    sound = differences.isfinite() & exact.isfinite()
    differences, exact, noise = differences[sound], exact[sound], noise[sound]
    same, matters = differences.sign() == exact.sign(), exact.abs() > _DEVIATIONS * noise
    return SignAgreement(
        count=len(exact),
        equal=int(same.sum()),
        above=int(matters.sum()),
        equal_above=int((same & matters).sum()),
        error=float(((differences - exact).abs() / exact.abs().clamp(min=1e-300)).median()) if len(exact) else 0.0,
    )
