"""The margin below the clip norm that a private loop leaves for float rounding of a batch's sum."""

from __future__ import annotations

import torch
from torch import nn

from privctl.domain.guarantee import Assumption
from privctl.integrations.report import ASSERTED
from privctl.train.clipping.factors import ROUNDING_MARGIN, Clipping, rounding_margin
from privctl.train.settings.choices import ClippingStyle


class RoundingMargin:
    """Leaves more where something is in half precision: in a pass under autocast, or in frozen weights of the model.

    ``reduced`` is whether a weight of the model is in half precision, so that all passes are.
    """

    def __init__(self, model: nn.Module) -> None:
        floating = [each.dtype for each in model.parameters() if each.is_floating_point()]
        self.reduced = any(torch.finfo(dtype).bits < 32 for dtype in floating)
        self._least: float | None = None

    def clipping(self, norm: float, style: ClippingStyle) -> Clipping:
        """How gradients are clipped for the clip norm ``norm``, which the noise is scaled to."""
        usual, more = rounding_margin(reduced=self.reduced), rounding_margin(reduced=True)
        return Clipping(norm=norm * (1 - usual), style=style, reduced_norm=norm * (1 - more))

    def note(self, *, reduced: bool) -> None:
        """Take down that a pass was added; ``reduced`` is whether something in it was in half precision."""
        margin = rounding_margin(reduced=reduced or self.reduced)
        self._least = margin if self._least is None else min(margin, self._least)

    def premise(self) -> Assumption:
        """The assumption that rounding moves no sum by more than the smallest margin that was left."""
        least = ROUNDING_MARGIN if self._least is None else self._least
        return Assumption(
            name="rounding of sums",
            statement=f"where a record is added, float rounding moves a batch's sum by no more than the {least:g} of "
            "the clip norm that clipping leaves for it",
            state=ASSERTED,
        )
