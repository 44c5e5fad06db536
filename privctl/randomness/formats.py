"""Conversion of half-precision numbers to float32 and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def widen(stored: NDArray[np.generic], dtype: str, out: NDArray[np.floating]) -> NDArray[np.floating]:
    """Convert numbers stored as ``dtype`` (F16, BF16 or F32) to float32; writes them to ``out`` and returns it."""
    if dtype == "BF16":
        np.left_shift(stored, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
    else:
        np.copyto(out, stored)
    return out


def narrow(values: NDArray[np.floating], dtype: str, out: NDArray[np.generic]) -> None:
    """Round ``values`` to ``dtype`` (to nearest, ties to even) into ``out``; NaN may become infinite."""
    if dtype != "BF16":
        np.copyto(out, values, casting="same_kind")
        return
    bits = values.view(np.uint32)
    up = np.right_shift(bits, 16)
    np.bitwise_and(up, 1, out=up)
    np.add(up, 0x7FFF, out=up)
    np.add(up, bits, out=up)
    np.right_shift(up, 16, out=out, dtype=np.uint32, casting="unsafe")
