"""Checks of the user's own records and scores, for mistakes that would hide a leak."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from privctl.domain.errors import InputError
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes of a record's hash, and the deepest nesting of lists and mappings in a record.
_SIZE, _DEEPEST = 16, 16


def content_of(record: Any) -> bytes | None:
    """A BLAKE2b hash (16 bytes) of a record of tensors, arrays, texts, numbers, and lists and mappings of them.

    None for a record with anything else in it, which cannot be compared.
    """
    hasher = hashlib.blake2b(digest_size=_SIZE)
    try:
        for piece in _pieces(record, 0):
            hasher.update(b"%d:" % len(piece) + piece)
    except (TypeError, RuntimeError):  # of another kind, or a tensor that numpy has no type for
        return None
    return hasher.digest()


def _pieces(value: Any, depth: int) -> Iterable[bytes]:
    if depth > _DEEPEST:
        raise TypeError("too deep")
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype.str}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, str | bytes):
        yield value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    elif value is None or isinstance(value, bool | int | float | np.generic):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        yield b"{%d" % len(value)
        for key in sorted(value, key=repr):
            yield from _pieces(key, depth + 1)
            yield from _pieces(value[key], depth + 1)
    elif isinstance(value, list | tuple):
        yield b"[%d" % len(value)
        for item in value:
            yield from _pieces(item, depth + 1)
    else:
        raise TypeError(f"{type(value).__name__} is not compared")


def require_disjoint(contents: Sequence[bytes | None], member: Sequence[bool]) -> None:
    """Raise InputError where a record is both a member and a non-member.

    ``contents`` [records] are hashes, or None for records that cannot be compared; ``member`` [records] says which
    records are members.
    """
    sides: tuple[set[bytes], set[bytes]] = set(), set()
    for content, inside in zip(contents, member, strict=True):
        if content is not None:
            sides[inside].add(content)
    if both := len(sides[0] & sides[1]):
        raise InputError(
            f"{counted(both, 'record is', 'records are')} both a member and a non-member, which hides what the model "
            "learned; remove such records from both sides"
        )


def require_scores_of_records(named: Mapping[str, NDArray[np.float64]], batches: Sequence[NDArray[np.int64]]) -> None:
    """Raise InputError where scores [records] are equal within every one of ``batches``, like means over batches."""
    several = [rows for rows in batches if len(rows) > 1]
    for name, scores in named.items():
        flat = all((scores[rows] == scores[rows[0]]).all() for rows in several)
        if flat and len({float(scores[rows[0]]) for rows in several}) > 1:
            raise InputError(
                f"the function of scores returned {name!r} with one number for all records of a batch, such as a mean "
                "of losses; return a number for each record (reduction='none')"
            )
