"""A reader of Thrift's compact protocol, as far as parquet's footers and page headers use it."""

from __future__ import annotations

from typing import Any

#: Limit on the depth of nested structures.
_DEEPEST = 16


def varint(data: bytes, offset: int) -> tuple[int, int]:
    """(value, offset of its end) of the variable-length integer at ``offset``; raises ValueError if it is too long."""
    value = shift = 0
    while shift < 70:
        byte = data[offset]
        offset, value, shift = offset + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, offset
    raise ValueError("a number is too long")


def structure(data: bytes, offset: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """(fields by number, offset of the end) of the structure at ``offset``; raises ValueError if it is malformed."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while head := data[offset]:
        offset += 1
        if head >> 4:
            number += head >> 4
        else:
            coded, offset = varint(data, offset)
            number = coded >> 1 ^ -(coded & 1)
        kind = head & 15
        if kind in (1, 2):
            fields[number] = kind == 1
        else:
            fields[number], offset = _value(data, offset, kind, depth)
    return fields, offset + 1


def _value(data: bytes, offset: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2, 3):
        return data[offset], offset + 1
    if kind in (4, 5, 6):
        coded, offset = varint(data, offset)
        return coded >> 1 ^ -(coded & 1), offset
    if kind == 7:
        return None, offset + 8
    if kind == 8:
        size, offset = varint(data, offset)
        if size > len(data) - offset:
            raise ValueError("a text lies beyond its end")
        return data[offset : offset + size], offset + size
    if kind in (9, 10):
        return _list(data, offset, depth)
    if kind == 12:
        return structure(data, offset, depth + 1)
    raise ValueError(f"it holds a field of an unknown kind, {kind}")


def _list(data: bytes, offset: int, depth: int) -> tuple[list[Any], int]:
    head, offset = data[offset], offset + 1
    size = head >> 4
    if size == 15:
        size, offset = varint(data, offset)
    if size > len(data) - offset or depth > _DEEPEST:
        raise ValueError("a list lies beyond its end, or is nested too deeply")
    values = []
    for _ in range(size):
        value, offset = _value(data, offset, head & 15, depth + 1)
        values.append(value)
    return values, offset
