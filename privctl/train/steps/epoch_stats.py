"""Exact statistics of the private examples since the end of the last epoch; not for release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from privctl.parallel import Workers

_PREFIX = "tally."


@dataclass(slots=True, kw_only=True)
class EpochStats:
    """Losses and norms (n,) of the examples in order of use; ``zeroed`` counts those without a finite gradient.

    ``counted`` is what the examples of the current step add to the count that an adaptive clip norm follows.
    """

    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    zeroed: int = 0
    counted: list[Tensor] = field(default_factory=list)

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The statistics in the ``tensors`` of a saved state; empty if they hold none."""
        losses, norms = ([tensors[_PREFIX + name]] if _PREFIX + name in tensors else [] for name in ("losses", "norms"))
        return cls(losses=losses, norms=norms, zeroed=int(tensors.get(_PREFIX + "zeroed", 0)))

    def tensors(self) -> dict[str, Tensor]:
        """The state for ``restored``."""
        zeroed = torch.tensor(self.zeroed)
        return {
            _PREFIX + "losses": _as_vector(self.losses),
            _PREFIX + "norms": _as_vector(self.norms),
            _PREFIX + "zeroed": zeroed,
        }

    def mark(self) -> tuple[int, int, int, int]:
        """The current position, to which ``rewind`` can return."""
        return len(self.losses), len(self.norms), self.zeroed, len(self.counted)

    def rewind(self, mark: tuple[int, int, int, int]) -> None:
        """Drop what was added since ``mark``; nothing may have been gathered or summarized in between."""
        losses, norms, self.zeroed, counted = mark
        del self.losses[losses:], self.norms[norms:], self.counted[counted:]

    def take_count(self) -> Tensor:
        """The sum of ``counted``, a float64 scalar on the CPU; empties ``counted``."""
        total = torch.zeros((), dtype=torch.float64)
        for counts in self.counted:
            total += counts.cpu()
        self.counted = []
        return total

    def finite_since(self, mark: tuple[int, int, int, int]) -> bool:
        """Whether every loss and norm added since ``mark`` is finite; waits for the device once."""
        added = [values for values in (self.losses[mark[0] :], self.norms[mark[1] :]) if values]
        return not added or bool(torch.stack([torch.isfinite(torch.cat(values)).all() for values in added]).all())

    def gather(self, workers: Workers) -> None:
        """Move the statistics of all processes to the main one; every process must call it."""
        if workers.size == 1:
            return
        losses, norms = workers.gather(_as_vector(self.losses)), workers.gather(_as_vector(self.norms))
        zeroed = int(workers.gather(torch.tensor([self.zeroed])).sum())
        self._clear()
        if workers.is_main:
            self.losses, self.norms, self.zeroed = [losses], [norms], zeroed

    def summary(self, clip_norm: float | None) -> dict[str, float]:
        """Mean loss, median norm, and the fractions of clipped and of zeroed gradients; empties the tally.

        With ``clip_norm`` None, as it is adaptive or absent, there is no share of clipped gradients.
        """
        losses, norms = _as_vector(self.losses), _as_vector(self.norms)
        measures = {}
        if len(losses):
            measures["training_loss"] = float(losses.mean())
        if len(norms):
            if clip_norm is not None:
                measures["clipped_fraction"] = float((norms > clip_norm).double().mean())
            measures["median_norm"] = float(norms.median())
        if self.zeroed:
            measures["zeroed_fraction"] = self.zeroed / (self.zeroed + len(losses))
        self._clear()
        return measures

    def _clear(self) -> None:
        self.losses, self.norms, self.zeroed = [], [], 0


def _as_vector(parts: list[Tensor]) -> Tensor:
    """Concatenate ``parts`` to one vector (n,) float64 on the CPU."""
    return torch.cat([torch.empty(0, dtype=torch.float64), *(part.double().cpu() for part in parts)])
