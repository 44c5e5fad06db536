"""Control numbers: entries that no record has, noised with each measurement, which show the noise that was added.

What is released of a measurement is data and noise, so it does not show how much of it is noise. A control number is
noise alone: it is 0 before, whatever the records are, so it takes no part in the guarantee. It goes through the same
call as the layers' sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from privctl.domain.errors import PrivctlError
from privctl.domain.shown import counted
from privctl.train.methods.dpquant.draw import Floats

#: Control numbers of one measurement: with so many, half of the stated noise passes one with probability below 1e-12.
CONTROLS = 256
#: Noise as stated stops a run with this probability after each measurement.
_LEVEL = 1e-12
_KEY = "dpquant.controls"


@dataclass(slots=True, eq=False)
class ControlNumbers:
    """How many control numbers were released, and the sum of their squares, each divided by the stated deviation."""

    count: int = 0
    squares: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Their root mean square / the stated standard deviation: about 1 if it is that; None if there are none."""
        return math.sqrt(self.squares / self.count) if self.count else None

    def add(self, released: Floats, noise_multiplier: float) -> None:
        """Count the ``released`` control numbers (n,), in clip norms.

        Raises PrivctlError if, of all so far, the root mean square is not that of noise with ``noise_multiplier``, in a
        chi-squared test at level 1e-12.
        """
        from scipy.special import chdtr, chdtrc

        deviates = released / noise_multiplier
        self.count += len(deviates)
        self.squares += float(deviates @ deviates)
        tails = float(chdtr(self.count, self.squares)), float(chdtrc(self.count, self.squares))
        if not min(tails) >= _LEVEL / 2:  # so that a sum that is not a number fails too
            raise PrivctlError(
                f"the noise of measurements is not what is accounted for: {counted(self.count, 'control number')} have "
                f"{self.ratio:.6g} times the standard deviation that was asked for, {noise_multiplier:.6g} clip norms; "
                "release nothing of this run"
            )

    def tensors(self) -> Mapping[str, Tensor]:
        """What an interrupted run needs to continue."""
        return {_KEY: torch.tensor([float(self.count), self.squares], dtype=torch.float64)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from ``tensors``, if they hold a saved state; older states hold none."""
        if _KEY in tensors:
            count, self.squares = tensors[_KEY].tolist()
            self.count = int(count)
