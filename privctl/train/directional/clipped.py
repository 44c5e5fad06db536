"""Sums of examples' derivatives, with each example's vector clipped in L2 norm."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped(vectors: Tensor, norm: float) -> tuple[Tensor, Tensor]:
    """The sum (k,) of ``vectors`` (n, k), each clipped to L2 ``norm``, and their norms (n,), NaN if not finite.

    A vector that is not finite counts as zero, so that the run does not reveal it by stopping.
    """
    norms = torch.linalg.vector_norm(vectors, dim=1)
    sound = torch.isfinite(norms)
    factors = torch.where(sound, norm / norms.clamp(min=norm), 0.0)
    total = torch.where(sound[:, None], vectors, 0.0) * factors[:, None]
    return total.sum(0), torch.where(sound, norms, torch.nan)
