"""Writes tensors to safetensors files atomically, and reads them back."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from privctl.domain.errors import DivergedError, InputError
from privctl.storage.atomic import PendingFile, writing
from privctl.storage.header import TensorInfo, serialize_header
from privctl.storage.reader import SafetensorsFile
from privctl.train.clipping.shards import is_shard, whole

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TORCH = {name: dtype for dtype, name in _DTYPES.items()}


@contextmanager
def staged_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, public: bool = False
) -> Iterator[PendingFile]:
    """Write ``tensors`` in order of name, without committing them to ``path`` yet; ``public`` if meant for release.

    Sharded tensors are gathered one at a time, for which the other processes must call ``gather_shards``. Raises
    InputError for a tensor that is not finite or of an unsupported dtype, and FileSystemError if the file cannot be
    written.
    """
    infos, position = [], 0
    for name, tensor in sorted(tensors.items()):
        size = tensor.numel() * tensor.element_size()
        if tensor.dtype not in _DTYPES:
            raise InputError(
                f"tensor {name!r} is {tensor.dtype}, which is not written here; convert the model to float32"
            )
        if not is_shard(tensor):
            _check_finite(name, tensor)
        infos.append(TensorInfo(name, _DTYPES[tensor.dtype], tuple(tensor.shape), position, position + size))
        position += size
    header = serialize_header(infos, dict(metadata))
    with PendingFile(path, len(header) + position, public=public) as pending:
        pending.write_at(0, header)
        for info in infos:
            tensor = whole(tensors[info.name])
            if is_shard(tensors[info.name]):
                _check_finite(info.name, tensor)
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            pending.write_at(len(header) + info.begin, flat.view(torch.uint8).numpy().tobytes())
        yield pending


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, public: bool = False
) -> None:
    """Write ``tensors`` to ``path`` atomically; raises as ``staged_tensors``."""
    with staged_tensors(path, tensors, metadata, public=public) as pending:
        pending.commit()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of the file at ``path``, copied into memory; raises InputError for an invalid file."""
    with SafetensorsFile(path) as file:
        tensors = {}
        for info in file.tensors:
            raw = torch.frombuffer(bytearray(file.read(info)), dtype=torch.uint8) if info.end > info.begin else None
            dtype = _TORCH[info.dtype]
            tensors[info.name] = (torch.empty(0, dtype=dtype) if raw is None else raw.view(dtype)).reshape(info.shape)
        return tensors


def mapped_tensors(path: Path) -> dict[str, Tensor]:
    """Like ``read_tensors``, but the file is memory-mapped, so that only the accessed parts are read.

    Writes to the tensors stay in this process.
    """
    with SafetensorsFile(path) as file, open(path, "rb") as stream:
        if not file.tensors or file.tensors[-1].end == 0:
            return read_tensors(path)
        space = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        tensors = {}
        for info in file.tensors:
            dtype, start = _TORCH[info.dtype], file.header.data_start + info.begin
            count = info.size // dtype.itemsize
            if not count:
                tensors[info.name] = torch.empty(info.shape, dtype=dtype)
            elif start % dtype.itemsize:
                raw = torch.frombuffer(space, dtype=torch.uint8, count=info.size, offset=start)
                tensors[info.name] = raw.clone().view(dtype).reshape(info.shape)
            else:
                flat = torch.frombuffer(space, dtype=dtype, count=count, offset=start)
                tensors[info.name] = flat.reshape(info.shape)
        return tensors


def mapped(tensor: Tensor, folder: Path) -> Tensor:
    """A copy of ``tensor`` in a memory-mapped, unlinked file in ``folder``, readable by its owner only.

    The system pages it in and out, and frees it with the tensor or when the process ends, even if that is killed.
    Raises FileSystemError if the file does not fit.
    """
    if not tensor.numel():
        return tensor.detach().cpu().clone()
    with writing(folder):
        descriptor, name = tempfile.mkstemp(prefix=".privctl-", dir=folder)
        try:
            os.posix_fallocate(descriptor, 0, tensor.nbytes)  # a full disk fails here, and not with SIGBUS later
            tensor_on_disk = torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        finally:
            os.close(descriptor)
            os.unlink(name)
    return tensor_on_disk.view(tensor.shape).copy_(tensor)


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name; a tied weight occurs once, under its name in ``named_parameters``."""
    parameters = dict(network.named_parameters())
    tied = dict(network.named_parameters(remove_duplicate=False)).keys() - parameters.keys()
    return {name: tensor for name, tensor in network.state_dict().items() if name not in tied}


def load_tensors(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into the network by name. Raises InputError if they are of another model."""
    mismatch = network.load_state_dict(tensors, strict=False)
    parameters = {name for name, _ in network.named_parameters()}
    if mismatch.unexpected_keys or parameters & set(mismatch.missing_keys):
        raise InputError("the saved state is of another model; resume with the model that the run began with")


def require_finite(network: nn.Module, step: int) -> None:
    """Raise DivergedError for weights that are not finite after ``step``."""
    for name, parameter in network.named_parameters():
        if not torch.isfinite(parameter).all():
            raise DivergedError(
                f"parameter {name!r} holds NaN or infinity after step {step}; the training diverged: lower "
                "--learning-rate, or raise --batch-size"
            )


def gather_shards(tensors: Mapping[str, Tensor]) -> None:
    """Take part in the main process's writing of ``tensors``, which gathers sharded ones one at a time."""
    for _, tensor in sorted(tensors.items()):
        if is_shard(tensor):
            whole(tensor)


def _check_finite(name: str, tensor: Tensor) -> None:
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise DivergedError(f"tensor {name!r} holds NaN or infinity; the training diverged: lower --learning-rate")
