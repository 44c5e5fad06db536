"""Compares the signs of a few finite differences with those of the derivatives during the run.

The result depends on the private examples and no guarantee covers it; it is for the report's owner. The comparison
affects neither the weights, nor the random state, nor what is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from privctl.train.directional import Derivatives, FiredGroup, SignAgreement, agreement
from privctl.train.directional.passes import Losses, Randomness
from privctl.train.settings.choices import DerivativeMethod

#: The number of signs compared in a run, in its first steps that publish, and in one step.
SIGNS, _SIGNS_A_STEP = 12, 4
#: The number of examples per comparison: so few that a backward pass needs less memory than a batch's forward pass.
EXAMPLES = 4

_KEY = "met.agreement"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonCount:
    """The number of signs that a run ``tried`` to compare so far, and the agreement of those that could be."""

    tried: int = 0
    agreement: SignAgreement = field(default_factory=SignAgreement)

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The count in the ``tensors`` of a saved state; zero if it has none."""
        if _KEY not in tensors:
            return cls()
        *counts, error = tensors[_KEY].tolist()
        tried, count, equal, above, equal_above = (int(count) for count in counts)
        agreement = SignAgreement(count=count, equal=equal, above=above, equal_above=equal_above, error=error)
        return cls(tried=tried, agreement=agreement)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors for ``restored``."""
        a = self.agreement
        numbers = [self.tried, a.count, a.equal, a.above, a.equal_above, a.error]
        return {_KEY: torch.tensor(numbers, dtype=torch.float64)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignComparison:
    """Compares differences, if ``derivatives`` uses them, with backward passes that end at the fired tensors.

    ``per_example`` is as in ``Derivatives.choose_method``.
    """

    derivatives: Derivatives
    per_example: bool

    def wanted(self, before: ComparisonCount, fired: Sequence[FiredGroup]) -> bool:
        """Whether to compare a step's signs, given the comparisons ``before``."""
        if before.tried >= SIGNS:
            return False
        return self.derivatives.choose_method(fired, per_example=self.per_example) is DerivativeMethod.DIFFERENCE

    def more(
        self,
        before: ComparisonCount,
        losses: Losses,
        fired: Sequence[FiredGroup],
        directions: Sequence[Mapping[str, Tensor]],
    ) -> ComparisonCount:
        """``before`` with some groups of one step, compared one by one, so that only one gradient is held at a time.

        If the network has no backward pass, or no memory for one, no further comparison is tried.
        """
        network = self.derivatives.network
        count = min(_SIGNS_A_STEP, SIGNS - before.tried, len(fired))
        indices = sorted({round(i * (len(fired) - 1) / max(1, count - 1)) for i in range(count)})
        differences = Derivatives(network, DerivativeMethod.DIFFERENCE, step=self.derivatives.step)
        randomness, total = Randomness(next(network.parameters()).device), before.agreement
        try:
            for place in indices:
                total += agreement(differences, losses, [fired[place]], [directions[place]])
        except RuntimeError:
            return ComparisonCount(tried=SIGNS, agreement=total)
        finally:
            randomness.rewind()
        return ComparisonCount(tried=before.tried + len(indices), agreement=total)
