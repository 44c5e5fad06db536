"""Adding Gaussian noise, rounded onto a public grid, to streamed weights of every float format.

Candidates with several noise levels are nested: each is the next less noisy sum plus fresh noise (gradual release,
Koufogiannis et al. 2015). Each unrounded sum is rounded onto its own grid, and in half precision the grid point is
rounded to the format. One candidate is post-processing of a Gaussian around the weights; all of them together are
post-processing of the unrounded sums, so releasing them all costs what the least noisy one costs.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.errors import InputError
from privctl.randomness import BLOCK, WORTH_COMPILING, NoiseSource
from privctl.randomness.compiled.release import LEAST
from privctl.randomness.formats import narrow, widen
from privctl.randomness.gridded import largest
from privctl.storage.header import TensorInfo
from privctl.storage.reader import Checkpoint
from privctl.storage.stream import CHUNK, Piece

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Formats that can take noise, with the numpy view of their bytes.
FLOAT_VIEWS: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


#: A power of two below each format's largest number, and more standard deviations than any deviate can reach.
_LARGEST = {"F64": 2.0**1023, "F32": 2.0**127, "F16": 2.0**15, "BF16": 2.0**127}
_FARTHEST = 64.0
#: What to do about weights that overflow when noise is added.
_WIDER = {"F16": "convert the model to F32 or BF16", "F32": "convert the model to F64", "BF16": "convert it to F64"}


class WeightNoiser:
    """A ``Transform`` that writes one noisy copy of each weight per standard deviation."""

    def __init__(self, source: NoiseSource, stddevs: Sequence[float], streams: Mapping[str, int]) -> None:
        """``stddevs`` must increase; ``streams`` maps each tensor that gets noise to its noise stream.

        Tensors that share a stream get the same noise (tied weights); tensors not listed pass unchanged.
        """
        if list(stddevs) != sorted(set(stddevs)):
            raise ValueError(f"stddevs {list(stddevs)} must increase")
        self._source = source
        self._stddevs = list(stddevs)
        self._streams = streams
        self._local = threading.local()

    @property
    def candidates(self) -> int:
        """Number of noisy copies made of each weight."""
        return len(self._stddevs)

    def compile(self, checkpoint: Checkpoint) -> str:
        """Use compiled code for large checkpoints, if available; returns why not if it fails its self-test, else ""."""
        counts: Counter[str] = Counter()
        for _, tensor in checkpoint.tensors():
            if self.noises(tensor) and tensor.elements >= LEAST:
                counts[tensor.dtype] += tensor.elements
        kinds = [kind for kind, count in counts.items() if count >= WORTH_COMPILING]
        return self._source.compile(kinds) if len(self._stddevs) == 1 and kinds else ""

    def noises(self, tensor: TensorInfo) -> bool:
        """Whether ``tensor`` gets noise."""
        return tensor.name in self._streams

    def __call__(self, piece: Piece, buffers: Sequence[memoryview]) -> None:
        """Add noise to one piece; raises InputError if a weight is or becomes NaN or infinite."""
        stream = self._streams.get(piece.tensor.name)
        if stream is None:
            for buffer in buffers[1:]:
                buffer[:] = buffers[0]
            return
        view = FLOAT_VIEWS[piece.tensor.dtype]
        outputs = [np.frombuffer(buffer, view) for buffer in buffers]
        per_block = min(BLOCK, CHUNK // view.itemsize)
        first = piece.start // view.itemsize // per_block
        for i, start in enumerate(range(0, len(outputs[0]), per_block)):
            chunks = [out[start : start + per_block] for out in outputs]
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # values that are not finite are reported below, with the tensor's name
                self._noise_block(piece, stream, first + i, chunks)

    def _noise_block(self, piece: Piece, stream: int, block: int, outputs: Sequence[NDArray[np.generic]]) -> None:
        dtype = piece.tensor.dtype
        if len(outputs) == 1 and self._source.takes_stored(dtype, outputs[0], self._stddevs[0]):
            reach = self._source.release_stored(stream, block, outputs[0], dtype, self._stddevs[0])
            if not math.isfinite(reach):
                raise _not_finite(piece, outputs[0])
            self._require_no_overflow(piece, outputs[0], reach)
            return
        streams = [stream * len(outputs) + candidate for candidate in range(len(outputs))]
        if dtype in ("F32", "F64"):
            sums = [np.asarray(out) for out in outputs]
            values = sums[0]
        else:
            sums = self._work_arrays(len(outputs), len(outputs[0]))
            values = widen(outputs[0], dtype, sums[0])
        reach = largest(values)
        if not math.isfinite(reach):
            raise _not_finite(piece, outputs[0])
        self._source.release_nested(streams, block, values, self._stddevs, sums)
        for out, released in zip(outputs, sums, strict=True):
            if released is not out:
                narrow(released, dtype, out)
            self._require_no_overflow(piece, out, reach)

    def _require_no_overflow(self, piece: Piece, out: NDArray[np.generic], reach: float) -> None:
        """Raise InputError if a released weight is infinite; ``reach`` is the largest magnitude before noise."""
        dtype = piece.tensor.dtype
        may_overflow = not reach + _FARTHEST * self._stddevs[-1] < _LARGEST[dtype]
        if may_overflow and not finite(out, dtype):
            raise InputError(
                f"tensor {piece.tensor.name!r} overflows {dtype} to infinity once noise is added; "
                f"{_WIDER.get(dtype, 'check that the facts, and so the noise, are right')}"
            )

    def _work_arrays(self, candidates: int, count: int) -> list[NDArray[np.floating]]:
        """The current thread's float32 work arrays (count,), one per candidate."""
        if not hasattr(self._local, "arrays"):
            self._local.arrays = [np.empty(BLOCK, np.float32) for _ in range(candidates)]
        return [array[:count] for array in self._local.arrays]


def finite(out: NDArray[np.generic], dtype: str) -> bool:
    """Whether all weights in ``out`` (n,), stored in the format ``dtype``, are finite."""
    if not len(out):
        return True
    if dtype == "BF16":
        return bool(np.max(np.bitwise_and(out, 0x7F80)) < 0x7F80)
    return bool(np.isfinite(out.min()) and np.isfinite(out.max()))


def has_nan(stored: NDArray[np.generic], dtype: str) -> bool:
    """Whether any of the weights ``stored`` (n,) in the format ``dtype`` is NaN."""
    if dtype == "BF16":
        return bool(np.any(np.bitwise_and(stored, 0x7FFF) > 0x7F80))
    return bool(np.isnan(stored).any())


def _not_finite(piece: Piece, stored: NDArray[np.generic]) -> InputError:
    name = repr(piece.tensor.name)
    if has_nan(stored, piece.tensor.dtype):
        return InputError(f"tensor {name} holds NaN, to which no noise can be added; repair the model")
    return InputError(
        f"tensor {name} holds infinity, to which no noise can be added; repair it, or --exclude it if it is a mask"
    )
