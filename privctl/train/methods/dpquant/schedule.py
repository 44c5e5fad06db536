"""Chooses the layers that are quantized in each epoch."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privctl.domain.errors import CommandError
from privctl.train.methods.dpquant.draw import Floats, inclusion, order
from privctl.train.methods.dpquant.settings import LayerMode


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSchedule:
    """Chooses among the layers ``names``, whose costs in multiply-adds are ``costs``.

    Either the fraction ``fraction`` of the layers is quantized (rounded up), or the shortest prefix of the drawn order
    that covers the fraction ``compute_target`` of the multiply-adds. ``static`` holds the layers for mode static; if it
    is empty, one draw decides. The choice is a function of the public ``seed``, the epoch and released scores. Raises
    CommandError for an amount that leaves nothing to choose, ValueError unless exactly one amount is given if needed.
    """

    names: tuple[str, ...]
    costs: tuple[float, ...]
    mode: LayerMode
    seed: bytes
    fraction: float | None = None
    compute_target: float | None = None
    static: frozenset[str] = frozenset()
    beta: float = 0.0

    def __post_init__(self) -> None:
        free = self.mode in (LayerMode.DPQUANT, LayerMode.RANDOM) or (self.mode is LayerMode.STATIC and not self.static)
        if free and (self.fraction is None) == (self.compute_target is None):
            raise ValueError("give either a fraction or a compute target")
        if free and len(self.names) == 1:
            raise CommandError(
                f"only {self.names[0]!r} can be quantized of this model, which leaves nothing to choose; give --layers "
                "all or none, or a model whose layers are Linear, Conv1D or Conv2d"
            )
        if free and self.count is not None and self.count >= len(self.names):
            raise CommandError(
                f"{self.fraction:g} of {len(self.names)} layers are all of them, which leaves nothing to choose; lower "
                "--quantized-fraction, or give --layers all"
            )

    @property
    def count(self) -> int | None:
        """The number of layers quantized in each epoch; None if it depends on their costs."""
        if self.fraction is None:
            return None
        return max(1, math.ceil(round(self.fraction * len(self.names), 9)))

    @property
    def changing(self) -> bool:
        """Whether the choice differs between epochs."""
        return self.mode in (LayerMode.DPQUANT, LayerMode.RANDOM)

    def chosen(self, epoch: int, scores: Sequence[float] | Floats) -> frozenset[str]:
        """The layers to quantize in ``epoch``, from 0, given the released ``scores`` (n,), larger for more harm."""
        if self.mode is LayerMode.ALL:
            return frozenset(self.names)
        if self.mode is LayerMode.NONE:
            return frozenset()
        if self.static:
            return self.static
        turn = epoch if self.changing else 0
        drawn = order(self._used_scores(scores), self.beta, self.seed, turn).tolist()
        return frozenset(self.names[layer] for layer in drawn[: self._layer_count(drawn)])

    def share(self, names: frozenset[str]) -> float:
        """The fraction of all multiply-adds in the layers ``names``."""
        return math.fsum(cost for name, cost in zip(self.names, self.costs, strict=True) if name in names) / math.fsum(
            self.costs
        )

    def chances(self, scores: Sequence[float] | Floats) -> Floats | None:
        """The probability (n,) that each layer is quantized given ``scores``; None if the number depends on costs."""
        if self.mode is LayerMode.ALL or self.mode is LayerMode.NONE or self.static:
            taken = self.chosen(0, scores)
            return np.array([float(name in taken) for name in self.names])
        return None if self.count is None else inclusion(self._used_scores(scores), self.beta, self.count)

    def _used_scores(self, scores: Sequence[float] | Floats) -> Floats:
        """The scores if the mode uses them, else zeros."""
        given = np.asarray(scores, np.float64)
        return given if self.mode is LayerMode.DPQUANT else np.zeros_like(given)

    def _layer_count(self, drawn: Sequence[int]) -> int:
        """The number of layers to quantize: the fixed count, or the fewest that reach the compute target."""
        if self.count is not None:
            return self.count
        assert self.compute_target is not None
        done, wanted = np.cumsum([self.costs[layer] for layer in drawn]), self.compute_target * math.fsum(self.costs)
        return min(len(drawn), int(np.searchsorted(done, wanted * (1 - 1e-12))) + 1)


def candidates(names: Sequence[str], kept: Sequence[str]) -> tuple[str, ...]:
    """The layers that may be quantized: all but those that match a glob in ``kept``.

    Raises CommandError for a glob without a match, and if no layer is left.
    """
    out = {name for glob in kept for name in matching(names, glob, "--full-precision")}
    left = tuple(name for name in names if name not in out)
    if not left:
        raise CommandError(
            "no layer is left that could be quantized; those are Linear, Conv1D and Conv2d: take another model, or "
            "fewer --full-precision"
        )
    return left


def matching(names: Sequence[str], glob: str, flag: str) -> frozenset[str]:
    """The layers that match ``glob``. Raises CommandError, which names ``flag``, if there are none."""
    layers = frozenset(name for name in names if fnmatch.fnmatchcase(name, glob))
    if not layers:
        raise CommandError(f"{flag} {glob} matches no layer; the first are {', '.join(names[:3])}")
    return layers
