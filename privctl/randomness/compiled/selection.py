"""Which formats are noised by machine code: those whose code agrees with what numpy gives, bit for bit."""

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

#: How numbers of each format are held in arrays.
_ARRAYS = {"F32": "f4", "F16": "f2", "BF16": "u2"}
#: Public, so that the test is always the same.
_KEY = bytes(range(32))
#: Numbers of a block of the test: not a whole number of groups, and a last one without a partner.
_COUNT = 6151
#: Noise that is fine and coarse beside the numbers, and finer than all of them.
_STDDEVS = (0.37, 11.3, 2.0**-30)

_tested: dict[str, MachineCode | None] = {}


def tested_code(kinds: Collection[str]) -> tuple[dict[str, MachineCode], str]:
    """Code for those of ``kinds`` that it can be had for; second, what is wrong if any of it fails, else "".

    None is had where llvmlite is not installed, or numbers are stored the other way round.
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
            code, found = None, str(error).splitlines()[0]
        else:
            assert code is not None
            found = fault_of(code, kind)
        if found:
            code, fault = None, f"noise on {kind} numbers is drawn without llvmlite, as its machine code fails: {found}"
        _tested[kind] = code
    return {kind: code for kind in kinds if (code := _tested.get(kind)) is not None}, fault


def fault_of(code: MachineCode, kind: str) -> str:
    """What ``code`` does wrong with numbers stored as ``kind``; "" for nothing.

    Its deviates are held against those of float64 (``deviates``), what it releases against ``gridded.release``, of
    numbers among which float32 cannot decide many.
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
            return "what is not finite goes unnoticed"
    return ""


def _error_of_deviates(code: MachineCode) -> float:
    """The largest distance from float64's deviates, in units of what ``release`` allows for, whatever bits follow."""
    first, second = _words()
    drawn, edge = np.empty((2, len(first)), np.float32), np.empty(len(first), np.bool_)
    arrays = (first, second, drawn[0], drawn[1], edge)
    code.deviates(*(array.ctypes.data for array in arrays), -2.0, len(first) // GROUP)
    return max(
        float((np.abs(drawn - exact) / (CLOSE * (np.hypot(exact[0], exact[1]) + 1)))[:, ~edge].max())
        for exact in _exact(first, second)
    )


def _error_of_fine_deviates(code: MachineCode) -> float:
    """The same for those in double precision, in units of the error that comes with each."""
    first, second = _words()
    drawn = np.empty((3, len(first)))
    arrays = (first, second, drawn[0], drawn[1], drawn[2])
    code.fine(*(array.ctypes.data for array in arrays), -2.0, len(first) // GROUP)
    told = np.isfinite(drawn[2])
    worst = max(float((np.abs(drawn[:2] - exact) / drawn[2])[:, told].max()) for exact in _exact(first, second))
    return worst if 2 * told.sum() > len(first) else math.inf


def _words() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Words of pairs, of which U comes down to next to 0, and to 1."""
    words = deviates.probes()
    ends = [end >> shift for end in (1 << 31, 3 << 30) for shift in range(32)]
    first = np.concatenate([words, [max(end - 1, 0) for end in ends], [(1 << 31) - 1 - end // 2 for end in ends]])
    first = first[: len(first) // GROUP * GROUP].astype(np.int32)
    return first, np.resize(words[::-1], len(first)).copy()


def _exact(first: NDArray[np.int32], second: NDArray[np.int32]) -> list[NDArray[np.float64]]:
    """Float64's deviates if all bits that follow are 0, and if they are 1."""
    ends = (np.full(2 * len(first), bits, np.uint64) for bits in (0, (1 << 64) - 1))
    return [deviates.float64_deviates(first, second, following, lambda count: [1] * count) for following in ends]


def _doubtful(place: BlockKeystream, stddev: float, scratch: BlockBuffers) -> NDArray[np.float32]:
    """Numbers whose sums lie so close to the middle of two grid points that float32 cannot tell the nearer."""
    pairs = (_COUNT + 1) // 2
    words = place.leading(2 * pairs, scratch.zeros, scratch.stream(0))
    exact = deviates.float64_deviates(words[:pairs], words[pairs:], place.following(np.arange(pairs)), place.deep)
    return (0.5 * spacing(stddev) - stddev * exact.reshape(-1)[:_COUNT]).astype(np.float32)


def _numbers(kind: str) -> NDArray[np.generic]:
    """Numbers of every size and sign, subnormal ones and zeros, infinite ones and NaN, as they are stored."""
    words = np.arange(_COUNT, dtype=np.uint32) * np.uint32(0x9E3779B1)  # an odd number: it spreads evenly
    numbers = (words.view(np.int32) * np.float32(2.0**-31)).astype(np.float32)
    numbers[::7] = words[::7].view(np.float32)
    numbers[:4] = 0.0, -0.0, np.inf, np.nan
    if kind == "BF16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return numbers.astype(np.dtype(_ARRAYS[kind]))
