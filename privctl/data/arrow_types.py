"""Which types of parquet and Arrow columns are read, and the size of nested values before they are unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

#: Overhead in bytes of a message, and of any other value in a list.
_MESSAGE, _VALUE = 64, 64


def is_readable(kind: pa.DataType) -> bool:
    """Whether columns of this type are read: strings, numbers, lists of these, messages, answers or images."""
    return _is_plain(kind) or _is_values(kind) or _is_messages(kind) or _is_answers(kind) or is_image(kind)


def _is_plain(kind: pa.DataType) -> bool:
    import pyarrow as pa

    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)  # an error names the record, if unwanted
    return any(test(value) for test in (*tests, *numbers))


def _is_messages(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    return all(_is_plain(kind.value_type.field(i).type) for i in range(kind.value_type.num_fields))


def is_image(kind: pa.DataType) -> bool:
    """Whether the values are encoded images: plain bytes, or a struct of bytes and a path."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    return fields.keys() <= {"bytes", "path"} and "bytes" in fields and is_image(fields["bytes"])


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_values(kind: pa.DataType) -> bool:
    """Whether the type is a list of strings or of numbers, such as words or labels."""
    return _is_list(kind) and _is_plain(kind.value_type)


def _is_answers(kind: pa.DataType) -> bool:
    """Whether the type is a struct of such lists, as `datasets` writes the answers of SQuAD."""
    import pyarrow as pa

    return pa.types.is_struct(kind) and all(_is_values(kind.field(i).type) for i in range(kind.num_fields))


def unpacked(column: pa.Array) -> pa.Array:
    """Nested columns with dictionary encoding undone; other columns unchanged."""
    import pyarrow as pa

    if _is_answers(column.type):
        names = [column.type.field(i).name for i in range(column.type.num_fields)]
        parts = [unpacked(column.field(i)) for i in range(column.type.num_fields)]
        return pa.StructArray.from_arrays(parts, names, mask=column.is_null()) if parts else column
    if not _is_list(column.type):
        return column
    value = column.type.value_type
    if pa.types.is_struct(value):
        fields = (value.field(i) for i in range(value.num_fields))
        plain = pa.struct([f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in fields])
    else:
        plain = value.value_type if pa.types.is_dictionary(value) else value
    if plain == value:
        return column
    listed = pa.large_list if pa.types.is_large_list(column.type) else pa.list_
    return column.cast(listed(column.type.value_field.with_type(plain)))


def nested_sizes(column: pa.Array) -> NDArray[np.int64]:
    """Approximate bytes [rows] that each row's nested values take once unpacked; 0 for columns that are not nested."""
    import pyarrow as pa
    import pyarrow.compute as pc

    none = np.zeros(len(column), np.int64)
    if _is_answers(column.type):
        return sum((nested_sizes(column.field(i)) for i in range(column.type.num_fields)), none)
    if not _is_list(column.type):
        return none
    values = column.flatten()
    if pa.types.is_struct(values.type):
        sizes = np.full(len(values), _MESSAGE, np.int64)
        for field in range(values.type.num_fields):
            sizes += _sizes(values.field(field))
    else:
        sizes = _VALUE + _sizes(values)
    ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    of_rows: NDArray[np.int64] = np.diff(before[np.concatenate([np.zeros(1, np.int64), ends])])
    return of_rows


def _sizes(texts: pa.Array) -> NDArray[np.int64]:
    """The bytes of each text, which may be dictionary-encoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = _lengths(texts.dictionary if pa.types.is_dictionary(texts.type) else texts)
    if pa.types.is_dictionary(texts.type):
        lengths = pc.fill_null(pc.take(lengths, texts.indices), 0)
    sizes: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def _lengths(texts: pa.Array) -> pa.Array:
    """The bytes of each text, 0 for null; 8 for values that are not texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
        return pc.fill_null(pc.binary_length(texts), 0)
    return pa.array(np.full(len(texts), 8, np.int64))
