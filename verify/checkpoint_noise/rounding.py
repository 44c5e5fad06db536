"""Whether the reported noise survives rounding to the stored format: most weights must have changed.

If the model before noise is present, the changed weights are counted. Otherwise the released weights give the expected
number: noise of standard deviation s is rounded away with probability 2 Phi(u / (2 s)) - 1, where u is the spacing of
the format's numbers there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from privctl.storage.header import TensorInfo
from privctl.storage.reader import SafetensorsFile
from verify.checkpoint_noise.measure import LEVEL, TensorNoise
from verify.checkpoint_noise.values import VIEWS, Floats, neighbours
from verify.laws.common import binomial_below

#: The fraction of weights that must have changed, and how many weights are read if there is no parent, evenly spread.
LEAST = 0.5
_MOST_READ, _RUN = 1 << 20, 1 << 12


def change_complaints(tensors: Sequence[TensorNoise], stddev: float) -> Iterator[str]:
    """A sentence if significantly fewer than half of the weights with noise changed."""
    weights, changed = sum(t.elements for t in tensors), sum(t.changed for t in tensors)
    if weights and binomial_below(changed, weights, LEAST) < LEVEL:
        yield (
            f"only {changed} of {weights} weights differ from the input's: most are released as training left them, "
            f"because noise of standard deviation {stddev:.3g} is too small for their format to hold"
        )


def unchanged_tensors(tensors: Sequence[TensorNoise]) -> list[str]:
    """The tensors in which most weights did not change, though most of the model's did."""
    return [t.name for t in tensors if binomial_below(t.changed, t.elements, LEAST) < LEVEL]


@dataclass(slots=True, kw_only=True)
class ExpectedChanges:
    """How many released weights noise of ``stddev`` is expected to have changed, from these weights alone."""

    stddev: float
    weights: float = 0.0
    changed: float = 0.0

    def look(self, file: SafetensorsFile, untouched: Collection[str]) -> None:
        """Add the weights of ``file`` except tensors ``untouched``; of large files only evenly spread runs are read."""
        chosen = [t for t in file.tensors if t.dtype in VIEWS and t.name not in untouched and t.elements]
        step = max(1, -(-sum(tensor.elements for tensor in chosen) // _MOST_READ))
        for tensor in chosen:
            for start in range(0, tensor.elements, _RUN * step):
                spacing = _spacings(file, tensor, start)
                if len(spacing):
                    stands_for = min(_RUN * step, tensor.elements - start)
                    self.weights += stands_for
                    self.changed += stands_for * float((2 * ndtr(-spacing / (2 * self.stddev))).mean())

    def complaint(self) -> str | None:
        """A sentence if fewer than half are expected to have changed."""
        if self.changed >= LEAST * self.weights:
            return None
        share = 100 * self.changed / self.weights
        return (
            f"noise of standard deviation {self.stddev:.3g} is expected to change {share:.3g} % of weights of this "
            "size in their format: most are released as training left them"
        )


def _spacings(file: SafetensorsFile, tensor: TensorInfo, start: int) -> Floats:
    """The spacing of the format's numbers at the weights from ``start`` on."""
    view = VIEWS[tensor.dtype]
    raw = file.read(tensor, start * view.itemsize, min(_RUN, tensor.elements - start) * view.itemsize)
    with np.errstate(invalid="ignore", over="ignore"):
        down, up = neighbours(np.frombuffer(raw, view), tensor.dtype)
        spacing = (up - down) / 2
    return spacing[np.isfinite(spacing)]
