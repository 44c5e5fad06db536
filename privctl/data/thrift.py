"""A reader of Thrift's compact protocol, as far as parquet's footers and page headers use it."""

from __future__ import annotations

from typing import Any

#: Limit on the depth of nested structures.
_DEEPEST = 16


def varint(data: bytes, place: int) -> tuple[int, int]:
    """(value, offset of its end) of the variable-length integer at ``place``; raises ValueError if it is too long."""
    value = shift = 0
    while shift < 70:
        byte = data[place]
        place, value, shift = place + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError("a number is too long")


def structure(data: bytes, place: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """(fields by number, offset of the end) of the structure at ``place``; raises ValueError if it is malformed."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while head := data[place]:
        place += 1
        if head >> 4:
            number += head >> 4
        else:
            coded, place = varint(data, place)
            number = coded >> 1 ^ -(coded & 1)
        kind = head & 15
        if kind in (1, 2):
            fields[number] = kind == 1
        else:
            fields[number], place = _value(data, place, kind, depth)
    return fields, place + 1


def _value(data: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2, 3):
        return data[place], place + 1
    if kind in (4, 5, 6):
        coded, place = varint(data, place)
        return coded >> 1 ^ -(coded & 1), place
    if kind == 7:
        return None, place + 8
    if kind == 8:
        size, place = varint(data, place)
        if size > len(data) - place:
            raise ValueError("a text lies beyond its end")
        return data[place : place + size], place + size
    if kind in (9, 10):
        return _list(data, place, depth)
    if kind == 12:
        return structure(data, place, depth + 1)
    raise ValueError(f"it holds a field of an unknown kind, {kind}")


def _list(data: bytes, place: int, depth: int) -> tuple[list[Any], int]:
    head, place = data[place], place + 1
    size = head >> 4
    if size == 15:
        size, place = varint(data, place)
    if size > len(data) - place or depth > _DEEPEST:
        raise ValueError("a list lies beyond its end, or is nested too deeply")
    values = []
    for _ in range(size):
        value, place = _value(data, place, head & 15, depth + 1)
        values.append(value)
    return values, place
