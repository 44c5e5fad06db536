"""Digests of records' contents, ignoring labels: texts that differ only in case or invisible characters are equal."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from privctl.data.columns import USUAL, Columns
from privctl.data.several import DataPath
from privctl.data.texts import iter_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIZE = 16
#: Control characters, and those without width: soft hyphens, joiners, direction marks, variation selectors, tags.
_INVISIBLE = re.compile(
    "[\\0-\\x08\\x0e-\\x1b\\x7f-\\x84\\x86-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f"
    "\\u202a-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\U000e0000-\\U000e0fff]"
)


def text_content(text: str) -> bytes:
    """16 bytes of BLAKE2b over ``text``, case-folded, NFKC-normalized, without white space and invisible characters.

    ``text_content("A b") == text_content("ab\\n")``.
    """
    plain, before = _normalized(text), text
    while plain != before:  # removing characters or folding case may yield text that NFKC changes again
        plain, before = _normalized(plain), plain
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()


def _normalized(text: str) -> str:
    return _INVISIBLE.sub("", "".join(unicodedata.normalize("NFKC", text).casefold().split()))


def texts_at(path: DataPath, columns: Columns = USUAL) -> Iterator[bytes]:
    """``text_content`` of each text at ``path``; raises as ``iter_texts`` does."""
    return (text_content(record.text) for record in iter_texts(path, columns=columns))


def contents_at(path: DataPath, columns: Columns = USUAL) -> Iterator[bytes]:
    """The content of each text, image or sound at ``path``, to find the same records in other files.

    ``columns`` need no template: a conversation counts as its messages. An image counts as its pixels, in
    whatever size a model takes it. Raises as reading the records does.
    """
    from privctl.data.count import of_texts  # with what reads images, which texts do without
    from privctl.data.images import iter_pixels
    from privctl.data.sounds import sound_files, waves_of

    if of_texts(path, columns):
        yield from texts_at(path, columns)
    elif sounds := sound_files(path):
        yield from (array_content(wave) for wave, _ in waves_of(path, sounds))
    else:
        yield from map(array_content, iter_pixels(path))


def users_at(path: DataPath, columns: Columns, unit: str) -> frozenset[str]:
    """Every user whom the texts at ``path`` name in the field ``unit``; raises as ``iter_texts`` does."""
    texts = iter_texts(path, columns=columns, unit=unit, shared=True)
    return frozenset(name for text in texts for name in text.users)


def first_shared(public: Iterable[bytes], private: Iterable[bytes]) -> int | None:
    """The number, from 1, of one record of ``public`` that is in ``private`` too; None if there is none.

    All public contents are held in memory, the private ones one at a time. Shared records are not counted, and those
    without any text are no shared ones.
    """
    line_numbers: dict[bytes, int] = {}
    for number, content in enumerate(public, start=1):
        line_numbers.setdefault(content, number)
    line_numbers.pop(text_content(""), None)
    return next((line_numbers[content] for content in private if content in line_numbers), None)


def array_content(values: NDArray[Any]) -> bytes:
    """16 bytes of BLAKE2b over an image's pixels or a sound's samples, their type and shape."""
    hasher = hashlib.blake2b(f"{values.dtype.str}{values.shape}\0".encode(), digest_size=_SIZE)
    hasher.update(values.tobytes())
    return hasher.digest()
