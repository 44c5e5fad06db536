"""Whether noise is large enough to survive storage: its standard deviation relative to the spacing of the weights.

Neighbouring numbers of a float format lie a spacing u apart. A weight with noise of standard deviation s is rounded
back to its old value with probability erf(u / (2 sqrt(2) s)): 0.38 for s = u, 0.96 for s = u / 4. Training rounds to
the same numbers, so one example moves a stored weight by at least u or not at all, and noise far below u hides no such
move, whatever the sensitivity of exact steps.

Spacings are those of the noisy weights that would be released, so the decision to refuse is post-processing of the
release and covered by its guarantees.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privctl.noise.weight_noise import FLOAT_VIEWS, WeightNoiser
from privctl.randomness import BLOCK
from privctl.randomness.gridded import spacing
from privctl.storage.header import TensorInfo
from privctl.storage.reader import Checkpoint, SafetensorsFile
from privctl.storage.stream import CHUNK, Piece

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The minimum expected fraction of weights that the noise changes, reached if s is about u. Noise that passes changes
#: more than half of the weights, as ``privctl verify`` requires.
LEAST_CHANGED = 0.6
#: Tensors in which a smaller fraction is expected to change are named in a warning: most is released as trained.
MOST_KEPT = 0.5
#: Stored bits of the mantissa and of the exponent, and log2 of the smallest spacing, which subnormal numbers have.
_MANTISSA = {"F64": 52, "F32": 23, "F16": 10, "BF16": 7}
_EXPONENT = {"F64": 11, "F32": 8, "F16": 5, "BF16": 8}
_LEAST = {"F64": -1074, "F32": -149, "F16": -24, "BF16": -133}
#: Number of blocks sampled, evenly spaced over all weights that get noise.
_PLACES = 32
#: Weights counted at a time, few enough that the allocator reuses memory instead of asking the system for it.
_SLICE = 1 << 14


@dataclass(frozen=True, slots=True)
class Grain:
    """Counts of sampled weights by the log2 of their spacing; ``dtypes`` are their formats.

    Without any weights, ``changed_share`` is 1 and the other properties are undefined.
    """

    counts: Mapping[int, int]
    dtypes: tuple[str, ...]

    def changed_share(self, stddev: float) -> float:
        """The expected fraction of the weights that noise of ``stddev``, rounded to its grid, changes."""
        grid = spacing(stddev)
        moved = (n * math.erfc(max(math.ldexp(1.0, k), grid) / stddev / math.sqrt(8)) for k, n in self.counts.items())
        return math.fsum(moved) / sum(self.counts.values()) if self.counts else 1.0

    @property
    def median(self) -> float:
        """The median spacing."""
        seen, half = 0, sum(self.counts.values()) / 2
        for exponent in sorted(self.counts):
            seen += self.counts[exponent]
            if seen >= half:
                return math.ldexp(1.0, exponent)
        return 0.0

    @property
    def least_stddev(self) -> float:
        """The smallest standard deviation that changes ``LEAST_CHANGED`` of the weights, or up to 1 % more."""
        high = math.ldexp(4.0, max(self.counts))
        low = math.ldexp(0.25, max(min(self.counts), -1000))
        while high > 1.005 * low:
            middle = math.sqrt(low) * math.sqrt(high)
            low, high = (low, middle) if self.changed_share(middle) >= LEAST_CHANGED else (middle, high)
        return high


class GrainOfTensors:
    """A ``Transform`` that adds noise and, on the way, counts the spacings in the middle of each tensor."""

    def __init__(self, noiser: WeightNoiser) -> None:
        self._noiser = noiser
        self._seen: dict[str, Grain] = {}

    def __call__(self, piece: Piece, buffers: Sequence[memoryview]) -> None:
        """Add noise to one piece; raises InputError as the noiser does."""
        self._noiser(piece, buffers)
        tensor = piece.tensor
        if not self._noiser.noises(tensor) or not tensor.elements:
            return
        block = _block(tensor, tensor.elements // 2)
        if piece.start <= block.start < piece.start + piece.size:
            start = block.start - piece.start
            self._seen[tensor.name] = _count_spacings(buffers[0][start : start + block.size], tensor)

    def of(self, checkpoint: Checkpoint) -> dict[str, Grain]:
        """The spacings counted in each tensor of ``checkpoint``, in the tensors' order."""
        return {tensor.name: self._seen[tensor.name] for _, tensor in checkpoint.tensors() if tensor.name in self._seen}


def grain_of(checkpoint: Checkpoint, noiser: WeightNoiser, noised: Collection[str], threads: int = 1) -> Grain:
    """The spacings of the least noisy candidate of the tensors ``noised``, sampled in up to ``_PLACES`` blocks.

    Raises InputError if weights are, or become, NaN or infinite.
    """
    chosen = _noised_tensors(checkpoint, noised)
    counts: Counter[int] = Counter()
    places = Counter(_sampled_blocks(chosen))
    for grain, times in zip(_sampled(list(places), noiser, threads), places.values(), strict=True):
        for exponent, count in grain.counts.items():
            counts[exponent] += count * times
    return Grain(counts, tuple(sorted({tensor.dtype for _, tensor in chosen})))


def grains_of(
    checkpoint: Checkpoint, noiser: WeightNoiser, noised: Collection[str], threads: int = 1
) -> dict[str, Grain]:
    """As ``grain_of``, but for each tensor separately, from the block in its middle."""
    middles = [(file, _block(tensor, tensor.elements // 2)) for file, tensor in _noised_tensors(checkpoint, noised)]
    grains = _sampled(middles, noiser, threads)
    return {piece.tensor.name: grain for (_, piece), grain in zip(middles, grains, strict=True)}


def typical_weight(checkpoint: Checkpoint, noised: Collection[str]) -> float:
    """Root mean square of the tensors ``noised`` before noise, sampled in up to ``_PLACES`` blocks."""
    squares, count = 0.0, 0
    for file, piece in set(_sampled_blocks(_noised_tensors(checkpoint, noised))):
        buffer = memoryview(bytearray(piece.size))
        file.read_into(file.header.data_start + piece.tensor.begin + piece.start, buffer)
        weights = _numbers(np.frombuffer(buffer, FLOAT_VIEWS[piece.tensor.dtype]), piece.tensor).astype(np.float64)
        squares += float(np.square(weights).sum())
        count += weights.size
    return math.sqrt(squares / count) if count else math.inf


def _noised_tensors(checkpoint: Checkpoint, noised: Collection[str]) -> list[tuple[SafetensorsFile, TensorInfo]]:
    return [(file, tensor) for file, tensor in checkpoint.tensors() if tensor.name in noised and tensor.elements]


def _sampled(places: Sequence[tuple[SafetensorsFile, Piece]], noiser: WeightNoiser, threads: int) -> Iterator[Grain]:
    """The spacings of the least noisy candidate in each of ``places``."""

    def sample(place: tuple[SafetensorsFile, Piece]) -> Grain:
        file, piece = place
        buffers = [memoryview(bytearray(piece.size)) for _ in range(noiser.candidates)]
        file.read_into(file.header.data_start + piece.tensor.begin + piece.start, buffers[0])
        noiser(piece, buffers)
        return _count_spacings(buffers[0], piece.tensor)

    with ThreadPoolExecutor(threads, thread_name_prefix="grain") as pool:
        yield from pool.map(sample, places)


def _sampled_blocks(chosen: list[tuple[SafetensorsFile, TensorInfo]]) -> Iterator[tuple[SafetensorsFile, Piece]]:
    """The noise blocks at ``_PLACES`` evenly spaced weights; a block is repeated if several fall into it."""
    total, passed = sum(tensor.elements for _, tensor in chosen), 0
    marks = [total * (2 * i + 1) // (2 * _PLACES) for i in range(_PLACES)]
    for file, tensor in chosen:
        while marks and marks[0] < passed + tensor.elements:
            yield file, _block(tensor, marks.pop(0) - passed)
        passed += tensor.elements


def _block(tensor: TensorInfo, element: int) -> Piece:
    """The noise block of ``tensor`` that contains ``element``."""
    width = FLOAT_VIEWS[tensor.dtype].itemsize
    block = min(BLOCK, CHUNK // width) * width
    start = element * width // block * block
    return Piece(0, tensor, start, min(block, tensor.size - start))


def _numbers(stored: NDArray[np.generic], tensor: TensorInfo) -> NDArray[np.generic]:
    """The values (n,) of the ``stored`` words of ``tensor``."""
    return (stored.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "BF16" else stored


def _count_spacings(data: memoryview, tensor: TensorInfo) -> Grain:
    """Count the spacings of the weights of ``tensor`` stored in ``data``, by their exponents."""
    width = FLOAT_VIEWS[tensor.dtype].itemsize
    least, numbers = _LEAST[tensor.dtype], 1 << _EXPONENT[tensor.dtype]
    stored = np.frombuffer(data, f"<u{width}")
    counts = np.zeros(numbers, np.int64)
    for start in range(0, len(stored), _SLICE):
        exponents = (stored[start : start + _SLICE] >> _MANTISSA[tensor.dtype]).astype(np.intp) & (numbers - 1)
        counts += np.bincount(exponents, minlength=numbers)
    counts[1] += counts[0]  # subnormal numbers have the spacing of the smallest normal ones
    spacings = {least + above: int(counts[1 + above]) for above in np.flatnonzero(counts[1:]).tolist()}
    return Grain(spacings, (tensor.dtype,))
