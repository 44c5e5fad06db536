"""NumPy arrays in safetensors files, for everything but weights: scores, plans, samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import InputError
from privctl.storage.atomic import PendingFile
from privctl.storage.header import TensorInfo, serialize_header
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VIEWS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
}


@contextmanager
def staged_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[PendingFile]:
    """Write ``arrays`` as safetensors, without committing them to ``path`` yet; the same arrays give the same bytes.

    Raises FileSystemError if the file cannot be written.
    """
    kinds = {view: kind for kind, view in _VIEWS.items()}
    infos, buffers, position = [], [], 0
    for name, array in arrays.items():
        kind = kinds[array.dtype.newbyteorder("<")]
        buffers.append(np.ascontiguousarray(array, _VIEWS[kind]))
        infos.append(TensorInfo(name, kind, array.shape, position, position + array.nbytes))
        position += array.nbytes
    header = serialize_header(infos, metadata)
    with PendingFile(path, len(header) + position) as pending:
        pending.write_at(0, header)
        for info, buffer in zip(infos, buffers, strict=True):
            pending.write_at(len(header) + info.begin, buffer.tobytes())
        yield pending


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write ``arrays`` to ``path`` atomically; raises as ``staged_arrays`` does."""
    with staged_arrays(path, arrays, metadata) as pending:
        pending.commit(replace=True)


def read_arrays(file: SafetensorsFile, layout: Mapping[str, str], description: str) -> dict[str, NDArray[Any]]:
    """The vectors that ``layout`` maps to their safetensors dtypes; other tensors are ignored.

    Raises InputError, saying that ``file`` does not hold ``description``, if one is missing, not one-dimensional or of
    another dtype.
    """
    tensors = {tensor.name: tensor for tensor in file.tensors if tensor.name in layout}
    kinds = {tensor.name: tensor.dtype for tensor in tensors.values()}
    if kinds != dict(layout) or any(len(tensor.shape) != 1 for tensor in tensors.values()):
        raise InputError(f"{file.path} does not hold {description}")
    return {t.name: np.frombuffer(file.read(t), _VIEWS[t.dtype]) for t in tensors.values()}
