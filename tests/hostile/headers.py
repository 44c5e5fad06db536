"""Headers of safetensors files, damaged in every way that the grammar suggests, and what two parsers say of them."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator
from typing import Any

from safetensors import SafetensorError, deserialize

from privctl.domain.errors import InputError
from privctl.storage.header import header_length, parse_header

#: Part of our sentence -> why we refuse what the official parser takes. Nothing else may be refused here alone.
STRICTER = {
    r"names .* twice in one JSON object": "the official parser keeps one of the two, so readers may disagree on which",
    r"must have exactly dtype, shape and data_offsets": "unknown keys, and entries written as a list, are not in the "
    "format; what one reader ignores another may obey",
    r"unknown dtype \{": "a dtype written as an object is a habit of one library, not the format",
    r"__metadata__ that is not a map of strings": "null is no map of strings",
    r"expected a list of whole numbers": "a dimension of 2^63 or more beside one of 0: no framework can hold it",
}

_DTYPES = ("F32", "BF16", "U8", "I64", "F4", "F6_E2M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64", "F31", "f32", "BOOL", "")
_NUMBERS = (
    "0", "-0", "1", "2", "3", "4", "8", "-1", "1.0", "1e1", "0e0", "-0.0", "01", "+1", "0x1", "1_0", "4294967296",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "9" * 400, "true",
    "null", '"1"', "[]", "{}", "NaN", "Infinity", "1E400", "٣",
)  # fmt: skip
_KEYS = ('"dtype"', '"shape"', '"data_offsets"', '"stride"', '""', '"\\u0064type"', '"\\ud800"', '"-0"')
_SIGNS = '{}[]":, \t\n\r\x0b\x0c\x00\x1f\x7f\\/-0159.eE+u'


def official(data: bytes) -> bool:
    """Whether the official parser takes a file of these bytes."""
    try:
        deserialize(data)
    except SafetensorError:
        return False
    return True


def ours(data: bytes) -> str:
    """What privctl says against a file of these bytes; nothing where it takes it."""
    try:
        length = header_length(data[:8], len(data), "f")
        parse_header(data[8 : 8 + length], len(data), "f")
    except InputError as fault:
        return str(fault)
    return ""


def reason_for(sentence: str) -> str | None:
    """Why ``sentence`` may refuse what the official parser takes; None where nothing excuses it."""
    return next((why for pattern, why in STRICTER.items() if re.search(pattern, sentence)), None)


def file_bytes(header: str | bytes, body: int) -> bytes:
    """A file with this header and ``body`` zero bytes."""
    raw = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw + bytes(body)


def cases(seed: int, count: int) -> Iterator[bytes]:
    """``count`` files: built of grammar's parts, most of them nearly well-formed, and then damaged as text."""
    generator = random.Random(seed)
    for _ in range(count):
        header, body = _built(generator)
        for _ in range(generator.choice((0, 0, 1, 1, 2, 4))):
            header = _damaged(header, generator)
        body += generator.choice((0, 0, 0, 0, 0, 1, -1, 8))
        yield file_bytes(header, max(0, body))


def _built(generator: random.Random) -> tuple[str, int]:
    """A header of up to four tensors whose sizes agree more often than not, and the size of its data."""
    position, entries = 0, []
    for i in range(generator.randrange(5)):
        shape = [generator.choice((0, 1, 2, 3, 8)) for _ in range(generator.randrange(4))]
        dtype = generator.choice(("F32", "BF16", "U8", "F4", "F8_E4M3FNUZ"))
        count = 1
        for dimension in shape:
            count *= dimension
        size = count * {"F32": 32, "BF16": 16, "F4": 4}.get(dtype, 8) // 8
        entries.append((f"t{i}", dtype, [str(d) for d in shape], [str(position), str(position + size)]))
        position += size
    parts = []
    if generator.random() < 0.3:
        parts.append(generator.choice((
            '"__metadata__":{"format":"pt"}', '"__metadata__":{}', '"__metadata__":null', '"__metadata__":{"a":1}',
            '"__metadata__":[]', '"__metadata__":{"a":"1","a":"2"}',
        )))  # fmt: skip
    for name, dtype, shape, offsets in entries:
        lists = [_changed(shape, generator), _changed(offsets, generator)]
        kind = generator.choice(_DTYPES) if generator.random() < 0.1 else dtype
        written = f'{{"{kind}":null}}' if generator.random() < 0.02 else f'"{kind}"'
        fields = [f'"dtype":{written}', f'"shape":[{",".join(lists[0])}]', f'"data_offsets":[{",".join(lists[1])}]']
        if generator.random() < 0.1:
            fields[generator.randrange(3)] = f"{generator.choice(_KEYS)}:{generator.choice(_NUMBERS)}"
        if generator.random() < 0.1:
            fields.append(f"{generator.choice(_KEYS)}:{generator.choice(_NUMBERS)}")
        generator.shuffle(fields)
        parts.append(f'"{name if generator.random() > 0.05 else "t0"}":{{{",".join(fields)}}}')
    generator.shuffle(parts)
    pad = generator.choice(("", "", " ", "\n", "  "))
    return f"{pad if generator.random() < 0.2 else ''}{{{','.join(parts)}}}{pad}", position


def _changed(items: list[str], generator: random.Random) -> list[str]:
    """Sometimes another number, one more or one less."""
    items = list(items)
    chance = generator.random()
    if chance < 0.12 and items:
        items[generator.randrange(len(items))] = generator.choice(_NUMBERS)
    elif chance < 0.2:
        items.insert(generator.randrange(len(items) + 1), generator.choice(_NUMBERS))
    elif chance < 0.22 and items:
        items.pop()
    return items


def _damaged(text: str, generator: random.Random) -> str:
    at, kind = generator.randrange(len(text) + 1), generator.randrange(6)
    if kind == 0:
        return text[:at] + generator.choice(_SIGNS) + text[at + 1 :]
    if kind == 1:
        return text[:at] + generator.choice(_SIGNS) + text[at:]
    if kind == 2:
        return text[:at] + text[at + generator.randrange(1, 12) :]
    if kind == 3:
        return text[:at] + text[at : at + generator.randrange(1, 12)] + text[at:]
    numbers = list(re.finditer(r"\d+", text))
    if kind == 4 and numbers:
        found = generator.choice(numbers)
        return text[: found.start()] + generator.choice(_NUMBERS) + text[found.end() :]
    return text


def handmade() -> Iterator[tuple[str, bytes]]:
    """The cases that reviewers found by hand, each with its name."""

    def entry(dtype: Any = "U8", shape: str = "[1]", offsets: str = "[0,1]") -> str:
        return f'{{"dtype":{json.dumps(dtype)},"shape":{shape},"data_offsets":{offsets}}}'

    yield (
        "product past 2^64 beside 0",
        file_bytes(f'{{"a":{entry(shape="[4294967296,4294967296,0]", offsets="[0,0]")}}}', 0),
    )
    yield (
        "0 beside a product past 2^64",
        file_bytes(f'{{"a":{entry(shape="[0,4294967296,4294967296]", offsets="[0,0]")}}}', 0),
    )
    yield "bits past 2^64", file_bytes(f'{{"a":{entry("F64", "[1152921504606846976]", "[0,0]")}}}', 0)
    yield "2^63 beside 0", file_bytes(f'{{"a":{entry(shape="[9223372036854775808,0]", offsets="[0,0]")}}}', 0)
    yield "-0 as a dimension", file_bytes(f'{{"a":{entry(shape="[-0]", offsets="[0,0]")}}}', 0)
    yield "-0 as an offset", file_bytes(f'{{"a":{entry(shape="[0]", offsets="[-0,0]")}}}', 0)
    yield "-0 within a name", file_bytes(f'{{"a,-0":{entry()},"[-0":{entry(offsets="[1,2]")}}}', 2)
    yield (
        "offsets past 2^64",
        file_bytes(f'{{"a":{entry(shape="[0]", offsets="[18446744073709551616,18446744073709551616]")}}}', 0),
    )
    yield "a dtype as an object", file_bytes(f'{{"a":{entry({"U8": None})}}}', 1)
    yield "an entry as a list", file_bytes('{"a":["U8",[1],[0,1]]}', 1)
    yield "a null map of metadata", file_bytes(f'{{"__metadata__":null,"a":{entry()}}}', 1)
    yield "a name twice", file_bytes(f'{{"a":{entry()},"a":{entry()}}}', 1)
    yield "a key that nobody knows", file_bytes(f'{{"a":{entry()[:-1]},"x":1}}}}', 1)
    for dtype in ("F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F8_E4M3FN", "C128", "U4"):
        yield f"dtype {dtype}", file_bytes(f'{{"a":{entry(dtype)}}}', 1)
