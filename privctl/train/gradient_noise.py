"""Gaussian noise on summed gradients, rounded onto a public grid: what is kept of them has no low bits of the sums.

On a CPU the noise comes from the cryptographic source, on a GPU from the device's own generator. Both release, for
every entry x, the multiple of ``spacing(stddev)`` nearest to x + Z with Z as near to an exact Gaussian as
``privctl.accounting.gridded`` asks for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from privctl.domain.errors import PrivctlError
from privctl.randomness import BLOCK, NoiseSource
from privctl.randomness.deviates import FINE
from privctl.randomness.gridded import spacing


class GradientNoise(Protocol):
    """Makes sums safe to release, in place."""

    @property
    def description(self) -> str:
        """What a report says of where the noise came from."""
        ...

    @property
    def cryptographic(self) -> bool:
        """Whether foretelling it takes breaking a cipher."""
        ...

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """Add N(0, stddev^2) to every entry and round it onto the grid; each ``step`` may be asked for once."""
        ...


class KeyedNoise:
    """For float32 or float64 tensors on the CPU: AES-CTR keystream under a key from the operating system."""

    def __init__(self, source: NoiseSource) -> None:
        self._source = source

    @property
    def description(self) -> str:
        """See ``GradientNoise``."""
        return self._source.description

    @property
    def cryptographic(self) -> bool:
        """See ``GradientNoise``."""
        return not self._source.seeded

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """See ``GradientNoise``."""
        block = 0
        for tensor in tensors:
            for piece in _pieces(tensor, BLOCK):
                self._source.release(step, block, piece.numpy(), stddev)
                block += 1


class DeviceNoise:
    """For tensors on an accelerator: its counter-based generator, seeded once by the operating system.

    All is computed in float64, a stretch of entries at a time. Raises PrivctlError where the device's functions are
    less accurate than ``FINE`` asks for.
    """

    #: Pairs of deviates at a time; each takes about 120 bytes meanwhile.
    PAIRS = 1 << 21

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        """``seed`` is for tests: with it there is no privacy."""
        self._generator = torch.Generator(device)
        self._generator.manual_seed(int.from_bytes(os.urandom(8), "big") >> 1 if seed is None else seed)
        self._seeded = seed is not None
        _require_fine(self._generator.device)

    @property
    def description(self) -> str:
        """See ``GradientNoise``."""
        origin = "a given seed" if self._seeded else "a 63-bit seed from the operating system"
        return (
            f"Philox counter generator of {self._generator.device.type} under {origin}, Box-Muller, rounded onto a grid"
        )

    @property
    def cryptographic(self) -> bool:
        """See ``GradientNoise``."""
        return False

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """See ``GradientNoise``."""
        grid = spacing(stddev)
        for tensor in tensors:
            for piece in _pieces(tensor, 2 * self.PAIRS):
                words = self._words(2 * ((len(piece) + 1) // 2))
                noise = stddev * deviates(words, self._words)[: len(piece)]
                piece.copy_(_on_grid(piece.double(), noise, grid))

    def _words(self, count: int) -> Tensor:
        """``count`` uniform words of 63 bits."""
        words = torch.empty(count, dtype=torch.int64, device=self._generator.device)
        return words.random_(generator=self._generator)


class _KeystreamWords(Protocol):
    def __call__(self, count: int) -> Tensor: ...


def deviates(words: Tensor, more: _KeystreamWords) -> Tensor:
    """Standard normal deviates (2 n,) float64 from as many ``words`` of 63 bits, each within FINE R of an ideal one.

    Entry i of the first half decides on the radius of pair i, of the second half on its angle. U is measured from the
    nearer of 0 and 1; where its leading bits are few, ``more`` words follow, until those that count are enough.
    """
    first, second = words.chunk(2)
    upper = first >= 1 << 62
    from_edge = torch.where(upper, (1 << 63) - 1 - first, first)
    share = (from_edge.double() + 0.5) * 2.0**-63
    few = (from_edge < 1 << 52).nonzero().flatten()
    if len(few):
        share[few] = (from_edge[few].double() + (more(len(few)).double() + 0.5) * 2.0**-63) * 2.0**-63
    log = torch.where(upper, torch.log1p(-share), torch.log(share))
    if bool((lost := ~upper & (from_edge == 0)).any()):
        log[lost] = _deep_logs(int(lost.sum()), more).to(log)
    radius = (-2 * log).sqrt_()
    angle = (second - (1 << 62)).double() * (math.pi * 2.0**-62)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])


def _deep_logs(count: int, more: _KeystreamWords) -> Tensor:
    """Log of ``count`` uniforms whose leading 63 bits are 0: bits are drawn until 53 of them count."""
    logs = []
    for _ in range(count):
        number, bits = 0, 63
        while number < 1 << 53:
            number, bits = number << 63 | int(more(1)), bits + 63
        logs.append(math.log(number) - bits * math.log(2))
    return torch.tensor(logs, dtype=torch.float64)


def _on_grid(values: Tensor, noise: Tensor, step: float) -> Tensor:
    """The multiples of ``step`` nearest to ``values`` + ``noise``; see ``gridded.on_grid``."""
    steps = values / step
    held = steps.round()
    infinite = steps.isinf()
    rest = torch.where(infinite, 0.0, steps - held)
    on_grid = (held + (rest + noise / step).round()) * step
    return torch.where(infinite & values.isfinite(), values, on_grid) + 0.0


def _pieces(tensor: Tensor, size: int) -> Iterator[Tensor]:
    flat = tensor.view(-1)
    return (flat[start : start + size] for start in range(0, len(flat), size))


def _require_fine(device: torch.device) -> None:
    """Raise PrivctlError where ``device`` computes deviates that are not those of the C library, within FINE / 4."""
    spread = torch.empty(2048, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(0))
    ends = torch.tensor([1 << 52, (1 << 62) - 1, 1 << 62, (1 << 63) - 1 - (1 << 52), 1 << 53, 3 << 61])
    words = torch.cat([spread, ends, ends.flip(0), spread.flip(0)])
    pairs = len(words) // 2
    drawn = deviates(words.to(device), lambda count: torch.zeros(count, dtype=torch.int64, device=device)).cpu()
    for i, (first, second) in enumerate(words.view(2, pairs).T.tolist()):
        if min(first, (1 << 63) - 1 - first) < 1 << 52:
            continue  # follows other words
        share = (min(first, (1 << 63) - 1 - first) + 0.5) * 2.0**-63
        log = math.log(share) if first < 1 << 62 else math.log1p(-share)
        radius, angle = math.sqrt(-2 * log), (second - 2**62) * (math.pi * 2.0**-62)
        for value, wave in ((drawn[i], math.cos(angle)), (drawn[pairs + i], math.sin(angle))):
            if not abs(float(value) - radius * wave) <= radius * FINE / 4:
                raise PrivctlError(f"double precision on {device} is less accurate than noise needs; give --device cpu")


def noise_for(device: torch.device, seed: int | None = None) -> GradientNoise:
    """The noise for gradients on ``device``; ``seed`` is for tests and voids every guarantee."""
    return KeyedNoise(NoiseSource(seed)) if device.type == "cpu" else DeviceNoise(device, seed)
