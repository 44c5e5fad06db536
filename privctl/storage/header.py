"""The safetensors header: parsed with every check that the format requires, and written with sorted names.

Format: an 8-byte little-endian header length, that many bytes of JSON, then the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from privctl.domain.errors import InputError
from privctl.storage.json_text import parse_json, shown

#: Bits per element, by the format's dtype names.
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
INTEGER_DTYPES = frozenset({"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64"})

#: No framework supports longer dimensions; the official parser accepts up to 2^64 if another dimension is 0.
_DIMENSION_LIMIT = 1 << 63
#: The official parser multiplies up elements, and counts bits and offsets, in 64 bits.
_COUNT_LIMIT = 1 << 64
#: JSON's integer negative zero, which the official parser reads as a float.
_NEGATIVE_ZERO = re.compile(r"[\[,:\s]-0(?![.\deE])")
#: The official parser's limit on the header's length, in bytes.
HEADER_LIMIT = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's entry; ``begin`` and ``end`` are byte offsets into the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.end - self.begin

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header; ``tensors`` are in the order of their data, which begins at byte ``data_start``."""

    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]
    data_start: int


GGUF_ADVICE = (
    "give the original safetensors model, or convert it with transformers and the gguf package: "
    "AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=NAME).save_pretrained(OUTPUT)"
)


def refuse_pickle(prefix: bytes, source: str) -> None:
    """Raise InputError if the first bytes ``prefix`` are those of a file written by torch.save."""
    if prefix[:4] == b"PK\x03\x04" or prefix[:1] == b"\x80":
        raise InputError(
            f"{source} is a pickle file (PyTorch .bin/.pt), which can run code when loaded; "
            "convert it with safetensors.torch.save_file(state_dict, 'model.safetensors') and give that"
        )


def refuse_weights(prefix: bytes, source: str) -> None:
    """Raise InputError if the first 8 bytes ``prefix`` are those of a model that is not in safetensors format."""
    refuse_pickle(prefix, source)
    if prefix[:4] == b"GGUF":
        raise InputError(f"{source} is a GGUF file, whose weights are usually quantized; {GGUF_ADVICE}")


def header_length(prefix: bytes, file_size: int, source: str) -> int:
    """Length of the JSON that follows the first 8 bytes ``prefix``; raises InputError if it is not plausible."""
    length = int.from_bytes(prefix, "little")
    plausible = length <= HEADER_LIMIT and 8 + length <= file_size
    if not plausible or prefix[:1] != b"\x80":
        refuse_weights(prefix, source)
    if not plausible and prefix[:1] in (b"{", b"["):
        raise InputError(f"{source} is JSON, not a model; give a Hugging Face model's folder, or a .safetensors file")
    if file_size < 8:
        raise InputError(f"{source} is {file_size} bytes long; a safetensors file has at least 8; it is truncated")
    if not plausible and prefix.isascii() and prefix.decode("ascii").isprintable():
        raise InputError(f"{source} is text, not a model; give a Hugging Face model's folder, or a .safetensors file")
    if not plausible:
        raise InputError(
            f"{source} declares a header of {length} bytes but is {file_size} bytes long; "
            "it is truncated or not a safetensors file"
        )
    return length


def parse_header(raw: bytes, file_size: int, source: str) -> Header:
    """Parse and check the JSON ``raw``; ``file_size`` is the size of the whole file.

    Raises InputError for a malformed entry, a duplicate name, an unknown dtype, a size that disagrees with the shape,
    and offsets that overlap, leave a gap or pass the end of the file.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{source} has a header that is not UTF-8; it is not a safetensors file") from None
    entries = parse_json(text, f"{source} (header)")
    if not isinstance(entries, dict):
        raise InputError(f"{source} has a header that is not a JSON object; it is not a safetensors file")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InputError(f"{source} has a __metadata__ that is not a map of strings")
    tensors = sorted((_entry(n, e, source) for n, e in entries.items()), key=lambda t: (t.begin, t.end, t.name))
    if _NEGATIVE_ZERO.search(text):  # perhaps within a name
        json.loads(text, parse_int=partial(_not_negative_zero, source=source))
    data_start = 8 + len(raw)
    _check_layout(tensors, file_size - data_start, source)
    return Header(tuple(tensors), metadata, data_start)


def serialize_header(tensors: Iterable[TensorInfo], metadata: Mapping[str, str]) -> bytes:
    """The length prefix and JSON, with sorted names and padded with spaces to a multiple of 8; deterministic."""
    entries: dict[str, Any] = {}
    if metadata:
        entries["__metadata__"] = dict(sorted(metadata.items()))
    for t in sorted(tensors, key=lambda t: t.name):
        entries[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [t.begin, t.end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def elements_of(shape: Sequence[int]) -> int | None:
    """The product of ``shape``; None if it exceeds 64 bits on the way, as in the official parser.

    Takes linear time, unlike ``math.prod``: the product of a million dimensions is a number of a million words.
    """
    count = 1
    for dimension in shape:
        count *= dimension
        if count >= _COUNT_LIMIT:
            return None
    return count


def _not_negative_zero(digits: str, source: str) -> int:
    if digits == "-0":
        raise InputError(f"{source} (header) holds the number -0, which is not a count; write 0")
    return 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _COUNT_LIMIT


def _entry(name: str, entry: Any, source: str) -> TensorInfo:
    where = f"{source}: tensor {shown(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{where} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise InputError(f"{where} has the unknown dtype {shown(dtype)}; known are {', '.join(DTYPE_BITS)}")
    if not isinstance(shape, list) or not all(_is_count(s) and s < _DIMENSION_LIMIT for s in shape):
        raise InputError(f"{where} has the shape {shown(shape)}; expected a list of whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(o) for o in offsets):
        raise InputError(f"{where} has the data_offsets {shown(offsets)}; expected two whole numbers")
    info = TensorInfo(name, dtype, tuple(shape), *offsets)
    count = elements_of(shape)
    if count is None or count * DTYPE_BITS[dtype] >= _COUNT_LIMIT:
        raise InputError(f"{where} has the shape {shown(shape)}, which is more than any file can hold")
    if info.size * 8 != count * DTYPE_BITS[dtype]:
        raise InputError(f"{where} spans {info.size} bytes, not what {dtype} of shape {shown(shape)} takes")
    return info


def _check_layout(tensors: list[TensorInfo], data_size: int, source: str) -> None:
    position = 0
    for t in tensors:
        if t.begin < position:
            raise InputError(f"{source}: tensor {shown(t.name)} overlaps the one before it")
        if t.begin > position:
            raise InputError(f"{source}: {t.begin - position} bytes before tensor {shown(t.name)} belong to no tensor")
        position = t.end
    if position > data_size:
        raise InputError(
            f"{source} holds {data_size} bytes of tensors but its header describes {position}; it is truncated"
        )
    if position < data_size:
        raise InputError(f"{source} has {data_size - position} bytes after its last tensor that belong to none")
