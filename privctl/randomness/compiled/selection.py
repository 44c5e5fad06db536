"""The choice of formats for which machine code is used: those whose code agrees with numpy bit for bit."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from privctl.randomness import deviates, gridded
from privctl.randomness.compiled.release import CLOSE, GROUP, release
from privctl.randomness.formats import narrow, widen
from privctl.randomness.gridded import BlockBuffers, spacing
from privctl.randomness.keystream import BlockKeystream, Keystream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.randomness.compiled.program import MachineCode

#: The numpy dtype that holds numbers of each format.
_ARRAYS = {"F32": "f4", "F16": "f2", "BF16": "u2"}
#: A public key, so that the test is repeatable.
_KEY = bytes(range(32))
#: Numbers in the test's block: not a multiple of the group size, and odd, so that the last pair is incomplete.
_COUNT = 6151
#: Noise that is small and large relative to the numbers, and smaller than all of them.
_STDDEVS = (0.37, 11.3, 2.0**-30)

_tested: dict[str, MachineCode | None] = {}


def tested_code(kinds: Collection[str]) -> tuple[dict[str, MachineCode], str]:
    """The compiled code for each of ``kinds`` that has one; and the reason if one fails its self-test, else "".

    Empty if llvmlite is not installed, or on a big-endian machine.
    """
    try:
        from privctl.randomness.compiled import program
    except ImportError:
        return {}, ""
    if sys.byteorder != "little":
        return {}, ""
    fault = ""
    for kind in sorted(set(kinds) & _ARRAYS.keys() - _tested.keys()):
        try:
            code: MachineCode | None = program.MachineCode(kind)
        except (RuntimeError, OSError) as error:
            code, reason = None, str(error).splitlines()[0]
        else:
            assert code is not None
            reason = fault_of(code, kind)
        if reason:
            code, fault = (
                None,
                f"noise on {kind} numbers is drawn without llvmlite, as its machine code fails: {reason}",
            )
        _tested[kind] = code
    return {kind: code for kind in kinds if (code := _tested.get(kind)) is not None}, fault


def fault_of(code: MachineCode, kind: str) -> str:
    """What is wrong with ``code`` for numbers stored as ``kind``; "" if nothing is.

    Its deviates are compared with those in float64 (``deviates``), and its releases with ``gridded.release``, for
    numbers many of which float32 cannot decide.
    """
    if not (_error_of_deviates(code) < 0.75 and _error_of_fine_deviates(code) < 1):
        return "deviates are too far from those of double precision"
    keystream, scratch = Keystream(_KEY), BlockBuffers(_COUNT)
    for i, stddev in enumerate(_STDDEVS):
        place = BlockKeystream(keystream, i, 1)
        stored = _doubtful(place, stddev, scratch) if kind == "F32" and i == 0 else _numbers(kind)
        wide = widen(stored, kind, np.empty(_COUNT, np.float32))
        expected, finite = np.empty_like(stored), bool(np.isfinite(wide).all())
        with np.errstate(over="ignore", invalid="ignore"):
            gridded.release(wide, [stddev], [wide], [place], scratch)
            narrow(wide, kind, expected)
            reach = release(stored, kind, stddev, place, scratch, code)
        if stored.tobytes() != expected.tobytes():
            return "numbers differ from those that numpy gives"
        if math.isfinite(reach) != finite:
            return "NaN or infinity is not detected"
    return ""


def _error_of_deviates(code: MachineCode) -> float:
    """The largest distance from the float64 deviates, relative to the error allowed by ``release``."""
    first, second = _words()
    drawn, edge = np.empty((2, len(first)), np.float32), np.empty(len(first), np.bool_)
    arrays = (first, second, drawn[0], drawn[1], edge)
    code.deviates(*(array.ctypes.data for array in arrays), -2.0, len(first) // GROUP)
    return max(
        float((np.abs(drawn - exact) / (CLOSE * (np.hypot(exact[0], exact[1]) + 1)))[:, ~edge].max())
        for exact in _exact(first, second)
    )


def _error_of_fine_deviates(code: MachineCode) -> float:
    """The largest distance of the double-precision deviates, relative to the error bound returned with each."""
    first, second = _words()
    drawn = np.empty((3, len(first)))
    arrays = (first, second, drawn[0], drawn[1], drawn[2])
    code.fine(*(array.ctypes.data for array in arrays), -2.0, len(first) // GROUP)
    bounded = np.isfinite(drawn[2])
    worst = max(float((np.abs(drawn[:2] - exact) / drawn[2])[:, bounded].max()) for exact in _exact(first, second))
    return worst if 2 * bounded.sum() > len(first) else math.inf


def _words() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Words of test pairs, including U very close to 0 and to 1."""
    words = deviates.probes()
    ends = [end >> shift for end in (1 << 31, 3 << 30) for shift in range(32)]
    first = np.concatenate([words, [max(end - 1, 0) for end in ends], [(1 << 31) - 1 - end // 2 for end in ends]])
    first = first[: len(first) // GROUP * GROUP].astype(np.int32)
    return first, np.resize(words[::-1], len(first)).copy()


def _exact(first: NDArray[np.int32], second: NDArray[np.int32]) -> list[NDArray[np.float64]]:
    """The float64 deviates if all further bits are 0, and if they are all 1."""
    ends = (np.full(2 * len(first), bits, np.uint64) for bits in (0, (1 << 64) - 1))
    return [deviates.float64_deviates(first, second, following, lambda count: [1] * count) for following in ends]


def _doubtful(place: BlockKeystream, stddev: float, scratch: BlockBuffers) -> NDArray[np.float32]:
    """Numbers whose sums are so close to the midpoint of two grid points that float32 cannot decide."""
    pairs = (_COUNT + 1) // 2
    words = place.leading(2 * pairs, scratch.zeros, scratch.stream(0))
    exact = deviates.float64_deviates(words[:pairs], words[pairs:], place.following(np.arange(pairs)), place.deep)
    return (0.5 * spacing(stddev) - stddev * exact.reshape(-1)[:_COUNT]).astype(np.float32)


def _numbers(kind: str) -> NDArray[np.generic]:
    """Stored numbers of all magnitudes and both signs, including subnormals, zeros, infinities and NaN."""
    words = np.arange(_COUNT, dtype=np.uint32) * np.uint32(0x9E3779B1)  # multiples of an odd number, spread evenly
    numbers = (words.view(np.int32) * np.float32(2.0**-31)).astype(np.float32)
    numbers[::7] = words[::7].view(np.float32)
    numbers[:4] = 0.0, -0.0, np.inf, np.nan
    if kind == "BF16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return numbers.astype(np.dtype(_ARRAYS[kind]))
