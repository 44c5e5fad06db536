"""The safetensors header: malformed ones are one sentence, written ones are read, and the same bytes each time."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from privctl.domain.errors import InputError
from privctl.storage.header import (
    DTYPE_BITS,
    HEADER_LIMIT,
    Header,
    TensorInfo,
    header_length,
    parse_header,
    serialize_header,
)
from privctl.storage.reader import SafetensorsFile

WriteRaw = Callable[..., Path]


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refused(path: Path) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(InputError) as caught:
        SafetensorsFile(path)
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    assert len(message) < 400
    return message


MALFORMED = {
    "begins past the data": ({"a": entry(offsets=(8, 16))}, 8, "8 bytes before tensor 'a' belong to no tensor"),
    "ends past the data": ({"a": entry(shape=[4], offsets=(0, 16))}, 8, "holds 8 bytes of tensors but .* 16; .*trunc"),
    "one byte missing": ({"a": entry()}, 7, "holds 7 bytes of tensors but .* 8; it is truncated"),
    "bytes after the last": ({"a": entry()}, 9, "1 bytes after its last tensor"),
    "overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, 12, "tensor 'b' overlaps"),
    "same bytes twice": ({"a": entry(), "b": entry()}, 8, "tensor 'b' overlaps"),
    "gap": ({"a": entry(), "b": entry(offsets=(12, 20))}, 20, "4 bytes before tensor 'b' belong to no tensor"),
    "offsets reversed": ({"a": entry(offsets=(8, 0))}, 8, "spans -8 bytes"),
    "negative offset": ({"a": entry(offsets=(-8, 0))}, 8, "data_offsets"),
    "one offset": ({"a": entry(offsets=[0])}, 8, "data_offsets"),
    "three offsets": ({"a": entry(offsets=[0, 8, 8])}, 8, "data_offsets"),
    "offsets as text": ({"a": entry(offsets=["0", "8"])}, 8, "data_offsets"),
    "offsets as fractions": ({"a": entry(offsets=[0.0, 8.0])}, 8, "data_offsets"),
    "offsets as booleans": ({"a": entry("BOOL", [1], [False, True])}, 1, "data_offsets"),
    "offsets no list": ({"a": {**entry(), "data_offsets": 8}}, 8, "data_offsets"),
    "size disagrees with shape": ({"a": entry(shape=[3])}, 8, "'a' spans 8 bytes, not what F32"),
    "size disagrees with dtype": ({"a": entry("F64")}, 8, "'a' spans 8 bytes, not what F64"),
    "half a byte": ({"a": entry("F4", [3], [0, 1])}, 1, "spans 1 bytes, not what F4"),
    "immense shape": ({"a": entry(shape=[2**62, 2**62, 2**62])}, 8, "more than any file can hold"),
    "negative shape": ({"a": entry(shape=[-2])}, 8, "the shape"),
    "fractional shape": ({"a": entry(shape=[2.0])}, 8, "the shape"),
    "shape with a boolean": ({"a": entry(shape=[2, True])}, 8, "the shape"),
    "shape no list": ({"a": {**entry(), "shape": 2}}, 8, "the shape"),
    "unknown dtype": ({"a": entry("F31")}, 8, "unknown dtype 'F31'; known are BOOL"),
    "dtype in lower case": ({"a": entry("f32")}, 8, "unknown dtype 'f32'"),
    "dtype no text": ({"a": entry(["F32"])}, 8, "unknown dtype"),
    "entry no object": ({"a": [1, 2]}, 8, "tensor 'a' must have exactly dtype, shape and data_offsets"),
    "entry null": ({"a": None}, 8, "tensor 'a' must have exactly"),
    "key missing": ({"a": {"dtype": "F32", "shape": [2]}}, 8, "tensor 'a' must have exactly"),
    "key too many": ({"a": {**entry(), "stride": [1]}}, 8, "tensor 'a' must have exactly"),
    "metadata number": ({"__metadata__": {"n": 1}, "a": entry()}, 8, "__metadata__ that is not a map of strings"),
    "metadata nested": ({"__metadata__": {"n": {}}, "a": entry()}, 8, "__metadata__"),
    "metadata null": ({"__metadata__": None, "a": entry()}, 8, "__metadata__"),
    "metadata list": ({"__metadata__": ["x"], "a": entry()}, 8, "__metadata__"),
    "a list": ([], 0, "not a JSON object"),
    "a number": (1, 0, "not a JSON object"),
}


@pytest.mark.parametrize(("header", "body", "cause"), MALFORMED.values(), ids=list(MALFORMED))
def test_malformed_headers(tmp_path: Path, write_raw: WriteRaw, header: Any, body: int, cause: str) -> None:
    path = write_raw(tmp_path / "m.safetensors", json.dumps(header), bytes(body))
    with pytest.raises(InputError, match=cause):
        SafetensorsFile(path)
    refused(path)


ENTRY = json.dumps(entry())

RAW = {
    "duplicate name": (f'{{"a":{ENTRY},"a":{ENTRY}}}', "names 'a' twice"),
    "duplicate key": ('{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "names 'dtype' twice"),
    "not UTF-8": (b'{"\xff\xfe":1}', "not UTF-8"),
    "not JSON": ('{"a":', "not valid JSON"),
    "no text at all": ("", "not valid JSON"),
    "byte order mark": ("\ufeff{}", "not valid JSON"),
    "trailing comma": ('{"a":' + ENTRY + ",}", "not valid JSON"),
    "NaN": ('{"a":NaN}', "NaN"),
    "infinity": ('{"a":-Infinity}', "-Infinity"),
    "nested absurdly": ('{"a":' + "[" * 200_000, "nested too deeply"),
    "number of 5000 digits": ('{"a":{"dtype":"F32","shape":[' + "9" * 5000 + '],"data_offsets":[0,8]}}', "number"),
    "half a surrogate pair": ('{"\\ud800":' + ENTRY + "}", "UTF-8|surrogate|character"),
    "zeros": (bytes(64), "not valid JSON"),
}


@pytest.mark.parametrize(("header", "cause"), RAW.values(), ids=list(RAW))
def test_headers_that_are_not_json(tmp_path: Path, write_raw: WriteRaw, header: str | bytes, cause: str) -> None:
    path = write_raw(tmp_path / "m.safetensors", header, bytes(8))
    with pytest.raises(InputError, match=cause):
        SafetensorsFile(path)
    refused(path)


@pytest.mark.parametrize("length", [3, 1000, HEADER_LIMIT + 1, 2**63, 2**64 - 1])
def test_a_header_length_that_cannot_be(tmp_path: Path, write_raw: WriteRaw, length: int) -> None:
    path = write_raw(tmp_path / "m.safetensors", '{"a":' + ENTRY + "}", bytes(8), length=length)
    assert "not valid JSON" in refused(path) if length == 3 else f"declares a header of {length} bytes" in refused(path)


def test_a_page_or_a_text_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!DOCTYPE html><html></html>")
    assert "is text, not a model" in refused(path)


@pytest.mark.parametrize("size", range(8))
def test_files_too_short_for_a_length(tmp_path: Path, size: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(bytes(size))
    assert f"is {size} bytes long" in refused(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, write_raw: WriteRaw) -> None:
    path = write_raw(tmp_path / "m.safetensors", '{"a":' + ENTRY + "}", bytes(8))
    whole = path.read_bytes()
    SafetensorsFile(path).close()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(path)


def test_long_values_are_cut_in_the_sentence(tmp_path: Path, write_raw: WriteRaw) -> None:
    for header in (
        {"n" * 100_000: None},
        {"a": entry("D" * 100_000)},
        {"a": entry(shape=[-1] * 100_000)},
        {"a": entry(shape=[1] * 100_000, offsets=[0, 4, 4])},
        {"a": entry(offsets=[7] * 100_000)},
        {"a": entry(shape=[1] * 100_000)},
    ):
        refused(write_raw(tmp_path / "m.safetensors", json.dumps(header), bytes(8)))


# Pickles are recognised; safetensors are never taken for pickles.


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_pickles_are_refused_with_the_way_to_convert(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    message = refused(path)
    assert "pickle" in message
    assert "safetensors.torch.save_file" in message


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_are_refused(tmp_path: Path, protocol: int) -> None:
    import pickle

    path = tmp_path / "model.pt"
    for value in ({"w": [1.0, 2.0]}, {}, list(range(1000)), "x"):
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        assert "is a pickle file" in refused(path)


def test_a_header_of_any_length_is_read(tmp_path: Path, write_raw: WriteRaw) -> None:
    """Lengths whose bytes look like a pickle's first (128, 640, 896, ...) among them."""
    text = '{"a":' + ENTRY + "}"
    for length in range(128, 1500, 8):
        path = write_raw(tmp_path / "m.safetensors", text.ljust(length), bytes(8))
        with SafetensorsFile(path) as file:
            assert file.header.data_start == 8 + length


# Writing.


def infos(*parts: tuple[str, str, tuple[int, ...]]) -> list[TensorInfo]:
    headers, position = [], 0
    for name, dtype, shape in parts:
        size = int(np.prod(shape, dtype=object)) * DTYPE_BITS[dtype] // 8
        headers.append(TensorInfo(name, dtype, shape, position, position + size))
        position += size
    return headers


def test_the_header_is_the_same_bytes_every_time() -> None:
    tensors = infos(("z", "F32", (2, 3)), ("a", "I8", ()), ("é", "BF16", (0,)))
    metadata = {"format": "pt", "a": "1", "report": "x.report.json"}
    expected = (
        '{"__metadata__":{"a":"1","format":"pt","report":"x.report.json"},'
        '"a":{"dtype":"I8","shape":[],"data_offsets":[24,25]},'
        '"z":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
        '"é":{"dtype":"BF16","shape":[0],"data_offsets":[25,25]}}'
    ).encode()
    generator = random.Random(0)
    for _ in range(50):
        generator.shuffle(tensors)
        items = list(metadata.items())
        generator.shuffle(items)
        raw = serialize_header(tensors, dict(items))
        assert raw[8:].rstrip(b" ") == expected
        assert len(raw) % 8 == 0
        assert int.from_bytes(raw[:8], "little") == len(raw) - 8


def test_what_is_written_is_read() -> None:
    tensors = infos(*((f"t{i}", dtype, (2, 4)) for i, dtype in enumerate(DTYPE_BITS)), ("s", "F64", ()))
    raw = serialize_header(tensors, {"k": 'v"\\\n'})
    size = len(raw) + tensors[-1].end
    header = parse_header(raw[8 : 8 + header_length(raw[:8], size, "f")], size, "f")
    assert header == Header(tuple(tensors), {"k": 'v"\\\n'}, len(raw))


def test_the_library_reads_what_is_written_here(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {
        "a": generator.normal(size=(3, 5)).astype(np.float32),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 4), np.float16),
        "b": generator.integers(0, 255, 11, np.uint8),
    }
    names = {"float32": "F32", "int64": "I64", "float16": "F16", "uint8": "U8"}
    tensors = infos(*((name, names[a.dtype.name], a.shape) for name, a in arrays.items()))
    path = tmp_path / "m.safetensors"
    path.write_bytes(serialize_header(tensors, {"format": "pt"}) + b"".join(a.tobytes() for a in arrays.values()))
    for name, loaded in safetensors.numpy.load_file(path).items():
        assert loaded.dtype == arrays[name].dtype
        assert np.array_equal(loaded, arrays[name])
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(arrays)


def test_what_the_library_writes_is_read_here(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    names = {
        torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
        torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
        torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    }  # fmt: skip
    tensors = {f"{i}": torch.ones((2, i), dtype=torch.float32).to(dtype) for i, dtype in enumerate(names)}
    tensors["scalar"] = torch.tensor(3.0)
    save_file(tensors, path, {"format": "pt", "x": "y"})
    with SafetensorsFile(path) as file:
        assert dict(file.metadata) == {"format": "pt", "x": "y"}
        assert {t.name for t in file.tensors} == set(tensors)
        for t in file.tensors:
            assert t.dtype == names[tensors[t.name].dtype]
            assert t.shape == tuple(tensors[t.name].shape)
            assert bytes(file.read(t)) == bytes(tensors[t.name].reshape(-1).view(torch.uint8).numpy().tobytes())
    assert set(load_file(path)) == set(tensors)


def test_agreement_with_the_library_on_damaged_files(tmp_path: Path, write_raw: WriteRaw) -> None:
    """Whatever is accepted here, the library accepts too."""
    accepted = 0
    for header, body, _ in MALFORMED.values():
        path = write_raw(tmp_path / "m.safetensors", json.dumps(header), bytes(body))
        refused(path)
    for raw, size in damaged(random.Random(4), 400):
        path.write_bytes(raw + bytes(size))
        try:
            SafetensorsFile(path).close()
        except InputError:
            continue
        with safe_open(path, "numpy") as file:
            accepted += len(list(file.keys())) >= 0
    assert accepted, "no damaged file was accepted, so nothing was compared"


# Fuzz: only InputError may escape.


def damaged(generator: random.Random, count: int) -> Any:
    """Valid files with bytes flipped, cut out, repeated or replaced, and the size of the tensors they should hold."""
    tensors = infos(("w.0", "F32", (3, 2)), ("w.1", "BF16", (4,)), ("n", "I64", ()), ("e", "F16", (0, 3)))
    whole = serialize_header(tensors, {"format": "pt"})
    size = tensors[-1].end
    printable = (string.digits + '[]{}",:-eE.+ \\u').encode()
    for _ in range(count):
        raw = bytearray(whole)
        for _ in range(generator.choice([1, 1, 1, 2, 5])):
            at = generator.randrange(len(raw)) if raw else 0
            kind = generator.randrange(5)
            if kind == 0:
                raw[at : at + 1] = bytes([generator.randrange(256)])
            elif kind == 1:
                raw[at : at + 1] = bytes([generator.choice(printable)])
            elif kind == 2:
                del raw[at : at + generator.randrange(1, 20)]
            elif kind == 3:
                raw[at:at] = raw[at : at + generator.randrange(1, 20)]
            else:
                del raw[generator.randrange(len(raw) + 1) :]
        if generator.random() < 0.7 and len(raw) >= 8:
            raw[:8] = (len(raw) - 8).to_bytes(8, "little")
        yield bytes(raw), size


def parse_whole(raw: bytes, body: int) -> Header:
    size = len(raw) + body
    length = header_length(raw[:8], size, "f.safetensors")
    return parse_header(raw[8 : 8 + length], size, "f.safetensors")


def test_damaged_bytes_raise_nothing_but_input_faults() -> None:
    refusals = 0
    for raw, body in damaged(random.Random(1), 6000):
        try:
            header = parse_whole(raw, body)
        except InputError as fault:
            refusals += 1
            assert "f.safetensors" in str(fault)
            continue
        assert sum(t.size for t in header.tensors) == len(raw) + body - header.data_start
    assert 3000 < refusals < 6000


JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2, 8, 2**31, 2**63, 10**400, 0.0, 1.5, 1e308, "", "F32", "BF16", "\ud800", "\0", [],
    {}, [0], [0, 0], [-1, 8], [2**64, 2**64], [[]], {"dtype": "F32"}, ["F32"], {"a": {}},
]  # fmt: skip


def replaced(value: Any, generator: random.Random) -> Any:
    """``value`` with one random part of it replaced by junk, dropped or renamed."""
    if not isinstance(value, (dict, list)) or not value or generator.random() < 0.2:
        return generator.choice(JUNK)
    if isinstance(value, dict):
        copy, key = dict(value), generator.choice(list(value))
        if generator.random() < 0.15:
            item = copy.pop(key)
            if generator.random() < 0.5:
                copy[generator.choice(["__metadata__", "\ud800", "", "shape", "new"])] = item
        else:
            copy[key] = replaced(copy[key], generator)
        return copy
    at = generator.randrange(len(value))
    return [*value[:at], replaced(value[at], generator), *value[at + 1 :]]


def test_replaced_parts_raise_nothing_but_input_faults() -> None:
    generator = random.Random(2)
    tensors = infos(("w.0", "F32", (3, 2)), ("w.1", "BF16", (4,)), ("n", "I64", ()), ("e", "F16", (0, 3)))
    whole = json.loads(serialize_header(tensors, {"format": "pt"})[8:])
    refusals = 0
    for _ in range(4000):
        text = json.dumps(replaced(whole, generator)).encode()
        try:
            header = parse_header(text, 8 + len(text) + tensors[-1].end, "f.safetensors")
        except InputError:
            refusals += 1
            continue
        raw = serialize_header(header.tensors, header.metadata)
        assert parse_whole(raw, tensors[-1].end).tensors == header.tensors, "what was accepted can be written"
    assert 2000 < refusals < 4000
