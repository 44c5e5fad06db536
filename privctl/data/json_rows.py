"""The objects of JSON files, one at a time: JSON lines, or one array."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privctl.data.columns import kind_of
from privctl.data.packed import LONGEST_LINE, byte_blocks, byte_lines, not_text
from privctl.domain.errors import InputError

#: The first characters that may follow each token of a JSON array of objects; "}" stands for a whole object.
_FOLLOWERS = {"": "[", "[": "{]", ",": "{", "}": ",]"}


def json_objects(path: Path, expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line of a file, whatever its fields; blank lines are skipped.

    ``expected`` is the end of error messages. Raises InputError, naming the line, if a line is not a JSON object, and
    for a file without any; FileSystemError if it cannot be read.
    """
    empty = True
    for number, data in json_lines(path, str(path), expected):
        empty = False
        yield number, data
    if empty:
        raise InputError(f"{path} holds no records; {expected} on each line")


def json_lines(
    file: Path, place: str, expected: str, within: tuple[int, int] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank; only those that begin ``within`` two offsets, if given."""
    for number, line in enumerate(byte_lines(file, within), start=1):
        if line.removeprefix(codecs.BOM_UTF8).strip():
            yield number, object_of(line, f"{place} line {number}", expected)


def json_array(file: Path, place: str, expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(position from 1, object) of each object in one JSON array; memory is proportional to the longest object."""
    decoder, number, text = json.JSONDecoder(), 0, ""
    blocks = _text_blocks(file, place)
    ended, needed = False, 1
    last = ""  # the token before: nothing, an opening bracket, a comma, or "}" for an object
    while True:
        while len(text) < needed and not ended:
            block = next(blocks, None)
            ended, text = block is None, text + (block or "")
        text = text.lstrip(" \t\r\n")
        where = f"{place} record {number + 1}"
        head = text[:1]
        _check_order(last, head, where, expected)
        if not last or head in (",", "]"):
            if head == "]":
                if text[1:].strip() or any(block.strip() for block in blocks):
                    raise InputError(f"{place} goes on after its JSON array; keep one array of records")
                return
            last, text, needed = head, text[1:], 1
            continue
        if not text and not ended:
            needed = 1
            continue
        try:
            data, end = decoder.raw_decode(text)
        except (json.JSONDecodeError, RecursionError, ValueError) as error:
            if ended or len(text) > LONGEST_LINE or isinstance(error, RecursionError):
                fault = "more than 64 MiB" if len(text) > LONGEST_LINE else "no valid JSON, or is cut off"
                raise InputError(f"{where} is {fault}; {expected}") from None
            needed = 2 * len(text)
            continue
        if not isinstance(data, dict):
            raise InputError(f"{where} is {kind_of(data)}; {expected}")
        number, text, needed, last = number + 1, text[end:], 1, "}"
        yield number, data


def object_of(line: bytes, where: str, expected: str) -> dict[str, Any]:
    """The JSON object on a ``line``; raises InputError, naming ``where`` and ending with ``expected``, for others."""
    try:
        data = json.loads(line.rstrip(b"\r\n").decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(not_text(line, where)) from None
    except json.JSONDecodeError as error:
        what = f"{where} is not valid JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
        raise InputError(f"{what}; {_unless_array(line, expected)}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where} holds a number or a nesting too large to read; {expected}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where} is {kind_of(data)}; {_unless_array(line, expected)}")
    return data


def _unless_array(line: bytes, expected: str) -> str:
    """``expected``, or if the line begins a JSON array how such a file is read."""
    if line.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
        return "a file that is one JSON array must end in .json, so rename it, or write one object per line"
    return expected


def _check_order(last: str, head: str, where: str, expected: str) -> None:
    """Raise InputError if the character ``head`` may not follow the token ``last`` in a JSON array of objects."""
    if head and head not in _FOLLOWERS[last] and (last == "}" or head in (",", "]")):
        raise InputError(f"{where} is no valid JSON, or is cut off; {expected}")


def _text_blocks(file: Path, place: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        block = b""
        for block in byte_blocks(file):
            yield decoder.decode(block)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InputError(not_text(block, place)) from None
