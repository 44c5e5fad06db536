"""The noise of a run's steps: independent, or correlated from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from privctl.accounting.buffered import BufferedMatrix
from privctl.train.steps.buffered_noise import BufferedNoise
from privctl.train.steps.correlated_noise import CorrelatedNoise, Part
from privctl.train.steps.gradient_noise import GradientNoise

if TYPE_CHECKING:
    from torch import Tensor


def correlated(
    noise: GradientNoise, coefficients: Sequence[float] | None, matrix: BufferedMatrix | None = None
) -> GradientNoise:
    """``noise`` correlated by banded ``coefficients`` or by the buffers of ``matrix``; unchanged without either."""
    if matrix is not None:
        return BufferedNoise(noise, matrix)
    return noise if coefficients is None else CorrelatedNoise(noise, coefficients)


def kept_noise(noise: GradientNoise | None, as_saved: Part) -> dict[str, Tensor]:
    """The state of the noise that a resumed run needs; empty unless the noise is correlated."""
    return noise.tensors(as_saved) if isinstance(noise, CorrelatedNoise | BufferedNoise) else {}


def restore_noise(noise: GradientNoise | None, tensors: Mapping[str, Tensor], own_part: Part) -> None:
    """Restore what ``kept_noise`` returned; raises as ``CorrelatedNoise.restore``."""
    if isinstance(noise, CorrelatedNoise | BufferedNoise):
        noise.restore(tensors, own_part)
