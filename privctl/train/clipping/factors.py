"""Clipping factors from per-example norms: each clipped gradient stays within the clip norm, rounding included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privctl.domain.errors import CommandError
from privctl.domain.ranges import CLIP_NORM
from privctl.train.clipping.terms import Squares
from privctl.train.settings.choices import ClippingStyle

#: Stabilizer of automatic clipping (Bu et al. 2022, "Automatic Clipping", section 4: AUTO-S with gamma 0.01).
AUTOMATIC_GAMMA = 0.01

#: Factors and sums of squares have rounding errors of some 2^-24 each; aiming this much lower keeps the norm within C.
INSIDE = 1 - 2.0**-20

#: A run with noise clips this fraction below the clip norm, to leave room for float rounding of a batch's sum: adding a
#: record may change the sum by slightly more than the record's own gradient.
ROUNDING_MARGIN = 2.0**-10

#: The same for passes in bfloat16. Adding a record changes the shape of a batch, and with it how the gradients of all
#: other records round: each by some 1e-3 of its size, in unrelated directions.
ROUNDING_MARGIN_REDUCED = 2.0**-4

#: The error of a squared norm from Gram matrices is at most this fraction of its ``slack`` (see ``Squares``). A float32
#: sum of K products has an error of about sqrt(K) 2^-24 times the sum of their sizes, less if summed in blocks; this
#: allows 32 times 2^-24.
GRAM_ERROR = 2.0**-19


def rounding_margin(*, reduced: bool) -> float:
    """The fraction of the clip norm that is left for rounding; ``reduced`` means that passes are in bfloat16."""
    return ROUNDING_MARGIN_REDUCED if reduced else ROUNDING_MARGIN


SMALLEST_NORM, LARGEST_NORM = CLIP_NORM.low, CLIP_NORM.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """The L2 norm that each example's gradient is clipped to, and the style of clipping.

    ``reduced_norm`` takes the place of ``norm`` in a pass in which something was in half precision; None changes
    nothing.
    """

    norm: float
    style: ClippingStyle = ClippingStyle.FLAT
    reduced_norm: float | None = None

    def of_pass(self, *, reduced: bool) -> Clipping:
        """The clipping of a pass; ``reduced`` is whether something in it was in half precision."""
        return replace(self, norm=self.reduced_norm) if reduced and self.reduced_norm is not None else self

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise CommandError(f"the clip norm {self.norm} is not a positive number; choose one, such as 1.0")
        if not SMALLEST_NORM / 2 <= self.norm <= LARGEST_NORM:
            raise CommandError(
                f"the clip norm {self.norm:g} is not between {SMALLEST_NORM:g} and {LARGEST_NORM:g}, where float32 "
                "measures norms; choose one, such as 1.0, and scale the loss instead"
            )


def sum_squares(squares: Mapping[str, Squares], names: list[str]) -> Squares:
    """The squares summed over the parameters ``names``, (n,) float64 each."""
    return Squares(
        torch.stack([squares[name].square for name in names]).sum(0),
        torch.stack([squares[name].slack for name in names]).sum(0),
    )


def clipping_factors(clipping: Clipping, groups: list[Squares]) -> list[Tensor]:
    """For each group of parameters, the factors (n,) float64 by which its examples' gradients are multiplied.

    FLAT and AUTOMATIC have one group; with PER_LAYER, each of k groups is clipped to 1 / sqrt(k) of the clip norm.
    """
    norm = clipping.norm * INSIDE / math.sqrt(len(groups))
    bounds = [(group.square + GRAM_ERROR * group.slack).sqrt() for group in groups]
    if clipping.style is ClippingStyle.AUTOMATIC:
        return [norm / (bound + AUTOMATIC_GAMMA) for bound in bounds]
    return [(norm / bound).clamp(max=1) for bound in bounds]
