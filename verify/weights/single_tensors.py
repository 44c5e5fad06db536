"""What a single tensor shows of its training: the rank of merged adapters, and positions that no text reached.

A merged adapter adds a product of two matrices of the stated rank, computed and added in float32. So the difference
from the first weights has this rank, but for rounding. Its best approximation of this rank is found in a random
subspace, which comes close to it (Halko, Martinsson and Tropp 2011, algorithm 4.4 and theorem 10.6); what is left must
be no larger than rounding makes it.

At most ``max_length`` tokens of a text were read, so learned embeddings of later positions had no gradient, and in a
training without noise only weight decay changed them. Audits are compared with this number: if it is stated too small,
they may attack the beginnings of texts alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from privctl.storage.header import TensorInfo
from privctl.storage.reader import SafetensorsFile
from verify.checkpoint_noise.values import VIEWS, Floats, numbers
from verify.weights.start import Start

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Dimensions of the subspace beyond the rank.
_MORE = 10
#: Rounding of a sum of weights relative to these, and of a product of adapters relative to it; both generous.
_SUM, _PRODUCT = 2.0**-21, 2.0**-15
#: How many times larger than rounding the rest must be: the subspace misses some of it.
_ROOM = 8
#: A float32 update rounds by half of this fraction of the weight, and weight decay by as much again.
_GRAIN = 2.0**-23
#: Relative differences of initial weights drawn on another processor.
_REDRAWN = 2.0**-17
_POSITIONS = re.compile(r"(?:.*\.)?(?:wpe|position_embeddings|embed_positions)\.weight")
#: Models count positions from as many ids further on, and may pad a text by a few tokens.
_FURTHER = 16


def higher_rank(start: Start, file: SafetensorsFile, rank: int) -> Iterator[str]:
    """Yields a sentence for each float32 matrix of ``file`` that differs from ``start`` by more than ``rank``."""
    for info in file.tensors:
        if info.dtype != "F32" or len(info.shape) != 2 or min(info.shape) <= rank + _MORE:
            continue
        old, new = start.tensors[info.name], _stored(file, info)
        added = (new - old).astype(np.float32)
        if not added.any():
            continue
        rounding = _SUM * (np.abs(old) + np.abs(new)) + _PRODUCT * np.abs(added)
        if not start.exact:
            rounding += _REDRAWN * np.abs(old)
        left, allowed = _beyond_rank(added, rank), _ROOM * float(np.linalg.norm(rounding))
        if left > allowed:
            yield (
                f"matrix {info.name!r} differs from what it began as by more than the product of two matrices of rank "
                f"{rank}: {left:.3g} is left, where rounding leaves {allowed:.3g} at most"
            )


def reached_further(start: Start, file: SafetensorsFile, limit: int, keep: float, updates: int) -> Iterator[str]:
    """Yields a sentence for each table whose rows well beyond ``limit`` tokens moved by other than weight decay.

    ``keep`` is the fraction of the first weights that weight decay left in ``updates`` updates.
    """
    first = limit + _FURTHER
    for info in file.tensors:
        if not _POSITIONS.fullmatch(info.name) or info.dtype not in VIEWS or len(info.shape) != 2:
            continue
        old, new = start.tensors[info.name][first:].astype(np.float64), _stored(file, info)[first:]
        room = _GRAIN * updates * (np.abs(old) + np.abs(new)) + (0.0 if start.exact else _REDRAWN * np.abs(old))
        moved = np.flatnonzero((np.abs(keep * old - new) > room).any(axis=1))
        if len(moved):
            yield (
                f"the training is said to have read {limit} tokens of a text at most, but row {first + moved[-1]} of "
                f"{info.name!r}, which only a later position uses, is not what it began as"
            )


def _stored(file: SafetensorsFile, info: TensorInfo) -> Floats:
    return numbers(np.frombuffer(file.read(info), VIEWS[info.dtype]), info.dtype).reshape(info.shape)


def _beyond_rank(matrix: NDArray[np.float32], rank: int) -> float:
    """The Frobenius norm of what a subspace of a few dimensions more than ``rank`` leaves of ``matrix``."""
    drawn = np.random.default_rng(0).standard_normal((matrix.shape[1], rank + _MORE)).astype(np.float32)
    basis = np.linalg.qr(matrix @ drawn)[0]
    basis = np.linalg.qr(matrix @ np.linalg.qr(matrix.T @ basis)[0])[0]
    return float(np.linalg.norm(matrix - basis @ (basis.T @ matrix)))
