"""Whether a training without noise left the embeddings of positions alone that, by its report, no text reached.

At most ``max_length`` tokens of a text were read, so learned embeddings of later positions had no gradient, and only
weight decay changed them. Audits are compared with this number: if it is stated too small, they may attack the
beginnings of texts alone. Noise moves every weight, so it hides this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from privctl.storage.reader import SafetensorsFile
from verify.checkpoint_noise.values import VIEWS, numbers
from verify.weights.start import Start

if TYPE_CHECKING:
    from numpy.typing import NDArray

_POSITIONS = re.compile(r"(?:.*\.)?(?:wpe|position_embeddings|embed_positions)\.weight")
#: Models count positions from as many ids further on, and may pad a text by a few tokens.
_FURTHER = 16
#: A float32 update rounds by half of this fraction of the weight, and weight decay by as much again.
_GRAIN, _REDRAWN = 2.0**-23, 2.0**-17


def reached_further(start: Start, file: SafetensorsFile, limit: int, keep: float, updates: int) -> Iterator[str]:
    """Yields a sentence for each table whose rows well beyond ``limit`` tokens moved by other than weight decay.

    ``keep`` is the fraction of the first weights that weight decay left in ``updates`` updates.
    """
    first = limit + _FURTHER
    for info in file.tensors:
        if not _POSITIONS.fullmatch(info.name) or info.dtype not in VIEWS or len(info.shape) != 2:
            continue
        raw = np.frombuffer(file.read(info), VIEWS[info.dtype])
        new, old = numbers(raw, info.dtype).reshape(info.shape)[first:], start.tensors[info.name][first:]
        moved = np.flatnonzero(_beyond_rounding(old.astype(np.float64), new, keep, updates, exact=start.exact))
        if len(moved):
            yield (
                f"the training is said to have read {limit} tokens of a text at most, but row {first + moved[-1]} of "
                f"{info.name!r}, which only a later position uses, is not what it began as"
            )


def _beyond_rounding(
    old: NDArray[np.float64], new: NDArray[np.float64], keep: float, updates: int, *, exact: bool
) -> NDArray[np.bool_]:
    """Which rows moved by more than weight decay and rounding."""
    room = _GRAIN * updates * (np.abs(old) + np.abs(new)) + (0.0 if exact else _REDRAWN * np.abs(old))
    return np.asarray((np.abs(keep * old - new) > room).any(axis=1))
