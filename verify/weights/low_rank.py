"""Whether matrices moved by no more than the rank of the adapters that are said to have been merged into them.

A merged adapter adds a product of two matrices of the stated rank, computed and added in float32. So the difference
from the first weights has this rank, but for rounding. Its best approximation of this rank is found in a random
subspace, which comes close to it (Halko, Martinsson and Tropp 2011, algorithm 4.4 and theorem 10.6); what is left must
be no larger than rounding makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from privctl.storage.reader import SafetensorsFile
from verify.checkpoint_noise.values import VIEWS, numbers
from verify.weights.start import Start

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Dimensions of the subspace beyond the rank.
_MORE = 10
#: Rounding of a sum of weights relative to these, and of a product of adapters relative to it; both generous.
_SUM, _PRODUCT = 2.0**-21, 2.0**-15
#: Relative differences of initial weights drawn on another processor.
_REDRAWN = 2.0**-17
#: How many times larger than rounding the rest must be: the subspace misses some of it.
_ROOM = 8


def higher_rank(start: Start, file: SafetensorsFile, rank: int) -> Iterator[str]:
    """Yields a sentence for each float32 matrix of ``file`` that differs from ``start`` by more than ``rank``."""
    for info in file.tensors:
        old = start.tensors[info.name]
        if info.dtype != "F32" or len(info.shape) != 2 or min(info.shape) <= rank + _MORE:
            continue
        new = numbers(np.frombuffer(file.read(info), VIEWS[info.dtype]), info.dtype).reshape(info.shape)
        added = (new - old).astype(np.float32)
        if not added.any():
            continue
        rounding = _SUM * (np.abs(old) + np.abs(new)) + _PRODUCT * np.abs(added)
        if not start.exact:
            rounding += _REDRAWN * np.abs(old)
        left, allowed = _beyond(added, rank), _ROOM * float(np.linalg.norm(rounding))
        if left > allowed:
            yield (
                f"matrix {info.name!r} differs from what it began as by more than the product of two matrices of rank "
                f"{rank}: {left:.3g} is left, where rounding leaves {allowed:.3g} at most"
            )


def _beyond(matrix: NDArray[np.float32], rank: int) -> float:
    """The Frobenius norm of what a subspace of a few dimensions more than ``rank`` leaves of ``matrix``."""
    drawn = np.random.default_rng(0).standard_normal((matrix.shape[1], rank + _MORE)).astype(np.float32)
    basis = np.linalg.qr(matrix @ drawn)[0]
    basis = np.linalg.qr(matrix @ np.linalg.qr(matrix.T @ basis)[0])[0]
    return float(np.linalg.norm(matrix - basis @ (basis.T @ matrix)))
