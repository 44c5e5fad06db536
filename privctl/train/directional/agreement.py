"""How far the signs of one method are those of another: what a report can say of differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.train.choices import DerivativeMethod
from privctl.train.directional.derivatives import Derivatives
from privctl.train.directional.difference import rounding
from privctl.train.directional.methods import FiredGroup, questions
from privctl.train.directional.passes import Losses, Randomness

if TYPE_CHECKING:
    from torch import Tensor

#: The noise floor in standard deviations.
_DEVIATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SignAgreement:
    """Of ``count`` derivatives, ``equal`` have the same sign; of those ``above`` the noise floor, ``equal_above``.

    What is not finite does not count. The floor is three standard deviations of what the losses' rounding makes of a
    difference. ``error`` is the median of |difference - derivative| / |derivative|.
    """

    count: int = 0
    equal: int = 0
    above: int = 0
    equal_above: int = 0
    error: float = 0.0

    @property
    def share(self) -> float:
        """Of all signs, the share that is equal; 1 of none."""
        return self.equal / self.count if self.count else 1.0

    @property
    def share_above(self) -> float:
        """Of the signs that matter, the share that is equal; 1 of none."""
        return self.equal_above / self.above if self.above else 1.0

    def __add__(self, other: SignAgreement) -> SignAgreement:
        """Both together; the error is the mean of theirs by count."""
        count = self.count + other.count
        mean = (self.error * self.count + other.error * other.count) / count if count else 0.0
        return SignAgreement(
            count=count,
            equal=self.equal + other.equal,
            above=self.above + other.above,
            equal_above=self.equal_above + other.equal_above,
            error=mean,
        )


def agreement(
    derivatives: Derivatives,
    losses_of: Losses,
    fired: Sequence[FiredGroup],
    directions: Sequence[Mapping[str, Tensor]],
    *,
    against: DerivativeMethod = DerivativeMethod.PARTIAL,
) -> SignAgreement:
    """Compare the batch's derivatives by ``derivatives`` with those by ``against``; three passes more find the noise.

    The random state is left as it was.
    """
    randomness = Randomness(next(derivatives.network.parameters()).device)
    differences = derivatives.batch(losses_of, fired, directions)
    randomness.rewind()
    exact = Derivatives(derivatives.network, against).batch(losses_of, fired, directions)
    randomness.rewind()
    noise = rounding(losses_of, questions(derivatives.network, fired, directions), derivatives.step)
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
