"""Sampling distributions of the next token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from privctl.domain.errors import CommandError

#: Divided by far less, logits overflow.
_LEAST_TEMPERATURE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingLaw:
    """Logits are divided by ``temperature``, then cut to the ``top_k`` largest, then to the nucleus ``top_p``.

    The nucleus is the smallest set of most likely tokens with at least that probability (Holtzman et al. 2020); tokens
    tied with the last of the ``top_k`` are kept. The rest is renormalized after each cut. Raises CommandError for
    values out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not _LEAST_TEMPERATURE <= self.temperature < math.inf:
            raise CommandError(
                f"--temperature is {self.temperature:g}; it must be finite and at least {_LEAST_TEMPERATURE:g}, where "
                "next to nothing but the most likely token is drawn (--greedy-only)"
            )
        if self.top_k is not None and self.top_k < 1:
            raise CommandError(f"--top-k is {self.top_k}; it must be at least 1, the number of tokens to draw from")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise CommandError(f"--top-p is {self.top_p:g}; it must be above 0 and at most 1")

    @property
    def plain(self) -> bool:
        """Whether this is the model's own distribution."""
        return self == SamplingLaw()


def law_scores(logits: torch.Tensor, targets: torch.Tensor, law: SamplingLaw) -> torch.Tensor:
    """Log-probability [n] (nats) of ``targets`` [n] when drawn by ``law`` from ``logits`` [n, vocabulary], in float32.

    It is -inf for tokens that ``law`` never draws. Of the probabilities (.5, .3, .15, .05), ``top_k=2`` leaves (.625,
    .375, 0, 0), and ``temperature=.5`` makes them (.684932, .246575, .061644, .006849).
    """
    z = restricted(logits, law)
    return (z.gather(1, targets[:, None]) - z.logsumexp(dim=1, keepdim=True))[:, 0]


def draw(logits: torch.Tensor, uniform: torch.Tensor, law: SamplingLaw) -> torch.Tensor:
    """A token [n] drawn by ``law`` from each of ``logits`` [n, vocabulary], by the numbers ``uniform`` [n] in [0, 1).

    It is the first token whose cumulative probability exceeds the number (inverse transform sampling).
    """
    probabilities = restricted(logits, law).softmax(dim=1)
    sums = probabilities.to(torch.float64).cumsum(dim=1)
    indices = torch.searchsorted(sums, uniform.to(sums)[:, None] * sums[:, -1:], right=True)[:, 0]
    return indices.clamp(max=logits.shape[1] - 1)


def restricted(logits: torch.Tensor, law: SamplingLaw) -> torch.Tensor:
    """``logits`` [n, vocabulary] divided by the temperature, in float32; -inf for tokens that ``law`` never samples."""
    z = logits.to(torch.float32) / law.temperature
    if law.top_k is not None and law.top_k < z.shape[1]:
        z = z.masked_fill(z < z.topk(law.top_k, dim=1).values[:, -1:], -math.inf)
    if law.top_p is not None and law.top_p < 1:
        ordered, places = z.sort(dim=1, descending=True, stable=True)
        shares = ordered.softmax(dim=1)
        inside = shares.cumsum(dim=1) - shares < law.top_p
        inside[:, 0] = True
        z = z.masked_fill(~torch.zeros_like(inside).scatter_(1, places, inside), -math.inf)
    return z
