"""Gaussian noise on summed gradients: from the cryptographic source on a CPU, from the device's own on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from privctl.randomness import BLOCK, NoiseSource


class GradientNoise(Protocol):
    """Adds independent normal deviates in place."""

    @property
    def description(self) -> str:
        """What a report says of where the noise came from."""
        ...

    @property
    def cryptographic(self) -> bool:
        """Whether foretelling it takes breaking a cipher."""
        ...

    def add(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """Add N(0, stddev^2) to every entry; each ``step`` may be asked for once."""
        ...


class KeyedNoise:
    """For float32 tensors on the CPU: AES-CTR keystream under a key from the operating system."""

    def __init__(self, source: NoiseSource) -> None:
        self._source = source
        self._buffer = torch.empty(BLOCK)

    @property
    def description(self) -> str:
        """See ``GradientNoise``."""
        return self._source.description

    @property
    def cryptographic(self) -> bool:
        """See ``GradientNoise``."""
        return not self._source.seeded

    def add(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """See ``GradientNoise``."""
        block = 0
        for tensor in tensors:
            flat = tensor.view(-1)
            for start in range(0, len(flat), BLOCK):
                piece = flat[start : start + BLOCK]
                noise = self._buffer[: len(piece)]
                self._source.normal(step, block, noise.numpy(), stddev)
                piece.add_(noise)
                block += 1


class DeviceNoise:
    """For tensors on an accelerator: its counter-based generator, seeded once by the operating system."""

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        """``seed`` is for tests: with it there is no privacy."""
        self._generator = torch.Generator(device)
        self._generator.manual_seed(int.from_bytes(os.urandom(8), "big") >> 1 if seed is None else seed)
        self._seeded = seed is not None

    @property
    def description(self) -> str:
        """See ``GradientNoise``."""
        origin = "a given seed" if self._seeded else "a 63-bit seed from the operating system"
        return f"Philox counter generator of {self._generator.device.type} under {origin}"

    @property
    def cryptographic(self) -> bool:
        """See ``GradientNoise``."""
        return False

    def add(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """See ``GradientNoise``."""
        for tensor in tensors:
            tensor.add_(torch.randn(tensor.shape, generator=self._generator, device=tensor.device), alpha=stddev)


def noise_for(device: torch.device, seed: int | None = None) -> GradientNoise:
    """The noise for gradients on ``device``; ``seed`` is for tests and voids every guarantee."""
    return KeyedNoise(NoiseSource(seed)) if device.type == "cpu" else DeviceNoise(device, seed)
