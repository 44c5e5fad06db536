"""Records of a data set, read lazily from JSON lines with their line numbers.

A record is an object with ``text``, or with ``prompt`` and ``response``, which are joined by one newline.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from privctl.domain.errors import InputFault
from privctl.storage.reader import unreadable

_EXPECTED = 'expected an object such as {"text": "..."} or {"prompt": "...", "response": "..."}'


@dataclass(frozen=True, slots=True)
class Record:
    """One record; ``line`` counts from 1, as editors do."""

    line: int
    text: str


def read_records(path: Path) -> Iterator[Record]:
    """The records of a JSONL file, plain or gzipped (``.gz``), one at a time; blank lines are no records.

    Raises InputFault, naming the line, for anything that is not a record, and for a file without any; IoFault where
    the system refuses.
    """
    empty = True
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            empty = False
            yield Record(number, _text_of(line, f"{path} line {number}"))
    if empty:
        raise InputFault(f"{path} holds no records; {_EXPECTED} on each line")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as stream:
            yield from stream
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputFault(f"{path} is not a whole gzip file; compress it again, or give it without .gz") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _text_of(line: bytes, where: str) -> str:
    try:
        data = json.loads(line.rstrip(b"\r\n").decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputFault(f"{where} is not UTF-8 text; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise InputFault(f"{where} is not valid JSON ({error.msg} at column {error.colno}); {_EXPECTED}") from None
    except (ValueError, RecursionError):
        raise InputFault(f"{where} holds a number or a nesting too large to read; {_EXPECTED}") from None
    if not isinstance(data, dict):
        raise InputFault(f"{where} is {_kind(data)}; {_EXPECTED}")
    if "text" in data:
        if "prompt" in data or "response" in data:
            raise InputFault(f"{where} has both 'text' and 'prompt' or 'response'; keep one form")
        return _string(data, "text", where)
    return _string(data, "prompt", where) + "\n" + _string(data, "response", where)


def _string(data: dict[str, Any], key: str, where: str) -> str:
    if key not in data:
        have = ", ".join(repr(name) for name in list(data)[:4]) or "no keys"
        raise InputFault(f"{where} lacks {key!r} (it has {have}); {_EXPECTED}")
    value = data[key]
    if not isinstance(value, str):
        raise InputFault(f"{where} has {_kind(value)} as {key!r}; expected a string")
    if not value.strip():
        raise InputFault(f"{where} has an empty {key!r}; fill it or remove the line")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputFault(f"{where} has half a surrogate pair in {key!r}, which is no character; repair it") from None
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
