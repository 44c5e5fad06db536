"""Records of a data set, read lazily from JSON lines with their line numbers.

A record is an object with ``text``, or with ``prompt`` and ``response``, which are joined by one newline.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from privctl.domain.errors import InputError
from privctl.storage.reader import unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Longest line in bytes: a record of 64 MiB of text is a mistake, or an attempt to exhaust memory.
LONGEST_LINE = 64 << 20
#: Limits on the unpacked size of a gzip file, of which the larger applies: bytes, and a multiple of the packed size.
#: Text shrinks to a tenth, zeros to 1/1000.
MOST_UNPACKED, MOST_RATIO = 1 << 30, 100

_EXPECTED = 'expected an object such as {"text": "..."} or {"prompt": "...", "response": "..."}'


@dataclass(frozen=True, slots=True)
class Record:
    """One record; ``line`` counts from 1, as editors do.

    ``label`` is the record's label as the file states it, if any. An image has ``pixels`` and an empty ``text``; its
    ``line`` is its position in the set.
    """

    line: int
    text: str
    label: str | None = None
    pixels: NDArray[Any] | None = field(default=None, compare=False, repr=False)

    @property
    def digest(self) -> bytes:
        """Identifies the record in any file: 16 bytes of BLAKE2b over its text, label and pixels."""
        hasher = hashlib.blake2b(self.text.encode(), digest_size=16)
        if self.label is not None:
            hasher.update(b"\0label\0" + self.label.encode())
        if self.pixels is not None:
            hasher.update(f"\0{self.pixels.dtype.str}{self.pixels.shape}\0".encode())
            hasher.update(self.pixels.tobytes())
        return hasher.digest()


@dataclass(frozen=True, slots=True)
class Passage:
    """A record's text; the response begins at character ``start``, which is 0 for plain text."""

    text: str
    start: int = 0


def read_records(path: Path) -> Iterator[Record]:
    """The records of a JSONL file, plain or gzipped (``.gz``), one at a time; blank lines are skipped.

    Raises InputError, naming the line, for anything that is not a record, and for a file without any; FileSystemError
    where the system refuses.
    """
    for number, data in json_objects(path):
        yield Record(number, text_of(data, f"{path} line {number}").text)


def json_objects(path: Path, expected: str = _EXPECTED) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's JSON object with the line's number, whatever its fields; raises as ``read_records`` otherwise.

    ``expected`` ends an error's sentence.
    """
    empty = True
    for number, line in enumerate(byte_lines(path), start=1):
        if line.strip():
            empty = False
            yield number, _object(line, f"{path} line {number}", expected)
    if empty:
        raise InputError(f"{path} holds no records; {expected} on each line")


def byte_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, plain or gzipped (``.gz``), with their ends; raises as ``read_records`` does.

    Raises InputError also for a line of more than ``LONGEST_LINE`` bytes, and for a gzip file that unpacks to more than
    ``MOST_UNPACKED`` bytes and ``MOST_RATIO`` times its size.
    """
    try:
        with _open(path) as stream:
            yield from _limited_lines(stream, path, _most_unpacked(path))
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path} is not a complete gzip file; compress it again, or give it without .gz") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _limited_lines(stream: IO[bytes], path: Path, most: float) -> Iterator[bytes]:
    number, total = 0, 0
    while line := stream.readline(LONGEST_LINE + 1):
        number, total = number + 1, total + len(line)
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{path} line {number} has more than {LONGEST_LINE >> 20} MiB; write one record a line, and split "
                "records that are longer"
            )
        if total > most:
            raise InputError(
                f"{path} unpacks to more than {most / 2**30:.3g} GiB, over {MOST_RATIO} times its size; unpack it and "
                "give it without .gz if that is intended"
            )
        yield line


def _most_unpacked(path: Path) -> float:
    """How many bytes of ``path`` may be read; unlimited unless it is compressed."""
    return max(MOST_UNPACKED, MOST_RATIO * path.stat().st_size) if path.suffix == ".gz" else math.inf


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _object(line: bytes, where: str, expected: str) -> dict[str, Any]:
    try:
        data = json.loads(line.rstrip(b"\r\n").decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(f"{where} is not UTF-8 text; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not valid JSON ({error.msg} at column {error.colno}); {expected}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where} holds a number or a nesting too large to read; {expected}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where} is {kind_of(data)}; {expected}")
    return data


def text_of(data: Mapping[str, Any], where: str) -> Passage:
    """The text of one record's fields; raises InputError, naming ``where``, for fields that are not a record."""
    if "text" in data:
        if "prompt" in data or "response" in data:
            raise InputError(f"{where} has both 'text' and 'prompt' or 'response'; keep one form")
        return Passage(_string(data, "text", where))
    prompt = _string(data, "prompt", where) + "\n"
    return Passage(prompt + _string(data, "response", where), len(prompt))


def _string(data: Mapping[str, Any], key: str, where: str) -> str:
    if key not in data:
        have = ", ".join(repr(name) for name in list(data)[:4]) or "no keys"
        raise InputError(f"{where} lacks {key!r} (it has {have}); {_EXPECTED}")
    value = data[key]
    if not isinstance(value, str):
        raise InputError(f"{where} has {kind_of(value)} as {key!r}; expected a string")
    if not value.strip():
        raise InputError(f"{where} has an empty {key!r}; fill it or remove the line")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} has an unpaired surrogate in {key!r}, which is not a character; repair it") from None
    return value


def kind_of(value: Any) -> str:
    """The JSON type of a value, for an error message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
