"""Gaussian noise on summed gradients, rounded onto a public grid so that no low-order bits of the sums are released.

On a CPU the noise comes from AES in counter mode, elsewhere from ChaCha20 on the device itself. Both release, for every
entry x, the multiple of ``spacing(stddev)`` nearest to x + Z, with Z as close to an exact Gaussian as
``privctl.accounting.gridded`` requires.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from privctl.domain.errors import PrivctlError
from privctl.randomness import BLOCK, WORTH_COMPILING, NoiseSource
from privctl.randomness.device import ElementRange, Place, engine_for, tiles_of
from privctl.randomness.device.tensor_engine import key_words
from privctl.randomness.keystream import require_own_process

#: Standard deviations for which numbers of grid steps fit into float64.
_LEAST_STDDEV, _MOST_STDDEV = 1e-250, 1e250
#: Tensors with fewer elements than the first share a launch, in buffers of at most the second.
_SHARED_BELOW, _BUFFER = 1 << 17, 1 << 22
#: The most tables of tiles that are cached; the small tensors of a model need fewer buffers than this.
_MOST_TABLES = 256


class GradientNoise(Protocol):
    """Makes sums safe to release, in place."""

    @property
    def description(self) -> str:
        """What a report says about the source of the noise."""
        ...

    @property
    def cryptographic(self) -> bool:
        """Whether predicting the noise requires breaking a cipher."""
        ...

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """Add N(0, stddev^2) to every entry and round it onto the grid.

        Raises ValueError unless ``step`` is above that of every earlier call, as noise is never drawn twice.
        """
        ...


class _Steps:
    """Enforces that steps are increasing; a resumed run has a new key, so it may begin at any step."""

    def __init__(self) -> None:
        self._next = 0

    def begin(self, step: int) -> None:
        """Mark ``step`` as drawn, even if it fails later; raises ValueError if it may have been drawn before."""
        if step < self._next:
            raise ValueError(f"noise for step {step} may have been drawn before: the next step is {self._next}")
        self._next = step + 1


class KeyedNoise:
    """For float32 or float64 tensors on the CPU: AES-CTR keystream under a key from the operating system."""

    def __init__(self, source: NoiseSource) -> None:
        self._source = source
        self._steps = _Steps()
        self._uncompiled = WORTH_COMPILING

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
        self._steps.begin(step)
        tensors = list(tensors)
        if self._uncompiled > 0:
            self._uncompiled -= sum(tensor.numel() for tensor in tensors)
            if self._uncompiled <= 0:
                self._source.compile(["F32"])
        for block, pieces in enumerate(
            _grouped_by_call(piece for tensor in tensors for piece in _pieces(tensor, BLOCK))
        ):
            values = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            self._source.release(step, block, values.numpy(), stddev)
            if len(pieces) > 1:
                torch._foreach_copy_(pieces, torch.split(values, [piece.numel() for piece in pieces]))
        self._source.forget_buffers()  # frees 2.4 MiB for the next backward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Consecutive elements of tensor number ``tensor``, starting at ``offset`` of the whole, contiguous tensor."""

    values: Tensor
    tensor: int
    offset: int = 0


class CipherNoise:
    """For tensors on an accelerator, or any device: ChaCha20 keystream under a 256-bit key, drawn on that device.

    The host never waits for it, and with Triton no tensor of noise is allocated. Small tensors are copied into one
    buffer and share a launch; each keeps the keystream of its own tensor number. The key belongs to this object, which
    can be neither copied nor pickled. Each step is drawn once, in increasing order, and each element once in a step.

    Processes that hold shards of the same tensors each have their own key. Under one key, disjoint shards have
    independent noise, the same that the whole tensors would get.
    """

    def __init__(self, device: torch.device, *, seed: int | None = None, key: bytes | None = None) -> None:
        """Draw a fresh key from the operating system or, for tests, derive one from ``seed`` (without any privacy).

        ``key`` (32 bytes) is given if another process with other shards uses the same key. Raises PrivctlError if
        ``device`` fails the test of the cipher and of the deviates.
        """
        self._engine, self._device, self._seeded = engine_for(device), device, seed is not None
        fresh = os.urandom(32) if seed is None else hashlib.sha256(b"privctl device noise seed %d" % seed).digest()
        self._key = key_words(fresh if key is None else key, device)
        self._process = os.getpid()
        self._steps = _Steps()
        self._tiles: dict[tuple[ElementRange, ...], Tensor] = {}

    @property
    def description(self) -> str:
        """See ``GradientNoise``."""
        key = "a key made from a given seed" if self._seeded else "a key from the operating system"
        return (
            f"ChaCha20 keystream on {self._device.type} by {self._engine.name} under {key}, Box-Muller, rounded onto a "
            "grid"
        )

    @property
    def cryptographic(self) -> bool:
        """See ``GradientNoise``; the engine has passed its test on this device."""
        return not self._seeded

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """See ``GradientNoise``; ``tensors`` are whole and contiguous, of any floating type."""
        self.release_shards([Shard(values=tensor, tensor=i) for i, tensor in enumerate(tensors)], stddev, step)

    def release_shards(self, shards: Sequence[Shard], stddev: float, step: int) -> None:
        """Like ``release``, for the contiguous parts of tensors in this process, with the full ``stddev``.

        Raises ValueError for shards that overlap, before anything is drawn, and CommandError in a fork of the process
        that made the key.
        """
        require_own_process(self._process)
        if not _LEAST_STDDEV < stddev < _MOST_STDDEV:
            raise PrivctlError(f"noise of standard deviation {stddev:g} is out of range; check clip norm and noise")
        self._steps.begin(step)
        _require_disjoint(shards)
        places = [Place(step=step, tensor=shard.tensor) for shard in shards]
        for pack in _packs(shards):
            if len(pack) > 1:
                self._release_joined([shards[i] for i in pack], stddev, step)
            else:
                alone = shards[pack[0]]
                self._engine.release(alone.values.view(-1), self._key, places[pack[0]], alone.offset, stddev)

    def _release_joined(self, shards: Sequence[Shard], stddev: float, step: int) -> None:
        pieces = [shard.values.view(-1) for shard in shards]
        flat = torch.cat(pieces)
        self._engine.release_joined(flat, self._key, step, self._tiles_of(shards), stddev)
        torch._foreach_copy_(pieces, torch.split(flat, [len(piece) for piece in pieces]))

    def _tiles_of(self, shards: Sequence[Shard]) -> Tensor:
        """The table of tiles for these shards, cached from step to step, as sending it makes the host wait."""
        ranges = tuple(
            ElementRange(tensor=shard.tensor, offset=shard.offset, count=shard.values.numel()) for shard in shards
        )
        if ranges not in self._tiles:
            if len(self._tiles) >= _MOST_TABLES:
                self._tiles.clear()
            self._tiles[ranges] = tiles_of(ranges, self._device)
        return self._tiles[ranges]

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a copy would draw the same noise again."""
        raise TypeError("noise under a secret key is neither copied nor sent to another process")


def _require_disjoint(shards: Sequence[Shard]) -> None:
    ends: dict[int, int] = {}
    for shard in sorted(shards, key=lambda shard: (shard.tensor, shard.offset)):
        if shard.offset < ends.get(shard.tensor, 0):
            raise ValueError(f"shards of tensor {shard.tensor} share element {shard.offset}, which has one noise only")
        ends[shard.tensor] = shard.offset + shard.values.numel()


def _packs(shards: Sequence[Shard]) -> Iterator[list[int]]:
    """Group the indices of ``shards`` by launch: small ones of one dtype share one, up to the size of a buffer."""
    open_packs: dict[torch.dtype, list[int]] = {}
    sizes: dict[torch.dtype, int] = {}
    for i, shard in enumerate(shards):
        size, kind = shard.values.numel(), shard.values.dtype
        if size >= _SHARED_BELOW:
            yield [i]
        elif size:
            if sizes.get(kind, 0) + size > _BUFFER:
                yield open_packs.pop(kind)
                sizes[kind] = 0
            open_packs.setdefault(kind, []).append(i)
            sizes[kind] = sizes.get(kind, 0) + size
    yield from open_packs.values()


def _pieces(tensor: Tensor, size: int) -> Iterator[Tensor]:
    flat = tensor.view(-1)
    return (flat[start : start + size] for start in range(0, len(flat), size))


def _grouped_by_call(pieces: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Group ``pieces`` by call: those above half a block alone, the others in order, of one dtype and up to a block.

    Each call that draws noise has the cost of some 10,000 numbers.
    """
    waiting: list[Tensor] = []
    count = 0
    for piece in pieces:
        size = piece.numel()
        if 2 * size > BLOCK:
            yield [piece]
            continue
        if waiting and (piece.dtype != waiting[0].dtype or count + size > BLOCK):
            yield waiting
            waiting, count = [], 0
        waiting.append(piece)
        count += size
    if waiting:
        yield waiting


def noise_for(device: torch.device, seed: int | None = None) -> GradientNoise:
    """The noise for gradients on ``device``; ``seed`` is for tests and voids every guarantee."""
    return KeyedNoise(NoiseSource(seed)) if device.type == "cpu" else CipherNoise(device, seed=seed)
