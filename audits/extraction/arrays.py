"""What an extraction audit keeps of each text, for a file of its own: ranks, distances and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.extraction.summary import Texts
from audits.extraction.windows import SkippedReason

if TYPE_CHECKING:
    from numpy.typing import NDArray


def arrays_of(
    texts: Sequence[Texts], omitted: Sequence[Sequence[tuple[int, SkippedReason]]]
) -> dict[str, NDArray[Any]]:
    """Both files' texts one after the other, the training data's first."""
    arrays: dict[str, NDArray[Any]] = {
        "train": np.concatenate([np.full(len(side_texts), i == 0) for i, side_texts in enumerate(texts)]),
        "line": np.concatenate([side_texts.line for side_texts in texts]),
        "matched": np.concatenate([side_texts.matched for side_texts in texts]),
        "greedy": np.concatenate([side_texts.extracted for side_texts in texts]),
        "undecided": np.concatenate([side_texts.undecided for side_texts in texts]),
        "copies": np.concatenate([side_texts.copies for side_texts in texts]),
        "cue": np.concatenate([side_texts.cue for side_texts in texts]),
        "skipped_train": np.array([i == 0 for i, entries in enumerate(omitted) for _ in entries], dtype=np.bool_),
        "skipped_line": np.array([line for entries in omitted for line, _ in entries], dtype=np.int64),
        "skipped_reason": np.array([int(reason) for entries in omitted for _, reason in entries], dtype=np.uint8),
    }
    known = [side_texts.known for side_texts in texts if side_texts.known is not None]
    if known:
        arrays["known"] = np.concatenate(known)
    near = [side_texts.near for side_texts in texts if side_texts.near is not None]
    if len(near) == len(texts):
        arrays |= {
            "distance": np.concatenate([each.distance for each in near]),
            "longest_run": np.concatenate([each.run for each in near]),
        }
    logp = [side_texts.logp for side_texts in texts if side_texts.logp is not None]
    return {f"extraction.{name}": array for name, array in arrays.items()} | (
        {"extraction.logp": np.concatenate(logp)} if logp else {}
    )
