"""Gaussian noise that is correlated over all steps by a few buffers (BLT) and partly cancels in the sum over steps.

As in ``steps.correlated_noise``, with c_0 = first and c_t = sum_j weights_j decays_j^(t-1): what is subtracted before
step t is sum_j weights_j B_j, where buffer B_j = sum_(i < t) decays_j^(t-1-i) w_i holds all earlier noise. After
each step every buffer is multiplied by its decay, and the step's w is added.

Steps that began but whose noise was lost count with w = 0: buffers only decay. This sets the entries of C below the
diagonal to 0 in the columns of those steps. No entry is negative, so the sensitivity does not increase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from privctl.accounting.buffered import BufferedMatrix
from privctl.domain.errors import InputError
from privctl.train.steps.correlated_noise import Part, release_correlated, unsharded
from privctl.train.steps.gradient_noise import GradientNoise

_PREFIX = "noise.buffer."
_NEXT, _MATRIX = "noise.next", "noise.matrix"


class BufferedNoise:
    """The noise of ``fresh``, correlated by ``matrix``; see ``GradientNoise``.

    Keeps one float64 copy of the gradients for each buffer of the matrix.
    """

    def __init__(self, fresh: GradientNoise, matrix: BufferedMatrix) -> None:
        self._fresh, self._matrix = fresh, matrix
        self._buffers: list[list[Tensor]] = [[] for _ in matrix.decays]
        self._next = 0

    @property
    def description(self) -> str:
        """See ``GradientNoise``."""
        return self._fresh.description

    @property
    def cryptographic(self) -> bool:
        """See ``GradientNoise``."""
        return self._fresh.cryptographic

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """See ``GradientNoise``; ``stddev`` is that of z in one step, and every step must pass the same tensors."""
        gradients, matrix = list(tensors), self._matrix
        for decay, buffer in zip(matrix.decays, self._buffers, strict=True):
            for tensor in buffer:
                tensor.mul_(decay ** max(0, step - self._next))
        self._next = step + 1
        weighted = zip(matrix.weights, self._buffers, strict=True)
        noise = release_correlated(self._fresh, gradients, matrix.first, weighted, stddev, step)
        for index, decay in enumerate(matrix.decays):
            if not self._buffers[index]:
                self._buffers[index] = [torch.zeros_like(each) for each in noise]
            self._buffers[index] = [
                buffer.to(each.device).mul_(decay).add_(each)
                for buffer, each in zip(self._buffers[index], noise, strict=True)
            ]

    def tensors(self, as_saved: Part = unsharded) -> dict[str, Tensor]:
        """What a resumed run needs; it is secret, as it reveals the sums without noise."""
        kept = {
            f"{_PREFIX}{number}.{index}": as_saved(index, tensor)
            for number, buffer in enumerate(self._buffers)
            for index, tensor in enumerate(buffer)
        }
        return kept | {_NEXT: torch.tensor(self._next), _MATRIX: self._numbers()}

    def restore(self, tensors: Mapping[str, Tensor], own_part: Part = unsharded) -> None:
        """Continue from ``tensors`` if they hold a saved state. Raises InputError if they are from another run."""
        if _NEXT not in tensors:
            return
        if _MATRIX not in tensors or tensors[_MATRIX].tolist() != self._numbers().tolist():
            raise InputError("the saved noise was correlated in another way; resume with the settings of the run")
        self._next = int(tensors[_NEXT])
        for number in range(len(self._buffers)):
            count = sum(name.startswith(f"{_PREFIX}{number}.") for name in tensors)
            saved = (tensors[f"{_PREFIX}{number}.{index}"] for index in range(count))
            self._buffers[number] = [own_part(index, tensor) for index, tensor in enumerate(saved)]

    def _numbers(self) -> Tensor:
        matrix = self._matrix
        return torch.tensor((matrix.first, *matrix.weights, *matrix.decays), dtype=torch.float64)
