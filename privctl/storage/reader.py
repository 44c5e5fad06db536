"""Lazy reading of a safetensors file, or of a Hugging Face directory with one or more, without loading tensors."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from privctl.domain.errors import FileSystemError, InputError, PrivctlError
from privctl.storage.header import GGUF_ADVICE, Header, TensorInfo, header_length, parse_header, refuse_weights
from privctl.storage.journal import recover
from privctl.storage.json_text import parse_json
from privctl.storage.weight_files import last_checkpoint, weight_files

INDEX_NAME = "model.safetensors.index.json"
#: The files that peft writes for an adapter: its weights, and its base model and settings.
ADAPTER_NAME, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
SINGLE_NAME = "model.safetensors"
#: In bytes; a report with a million tensors is smaller.
LARGEST_TEXT = 256 << 20
#: Where Linux presents its own state as files, some of them endless although stat calls them regular.
_KERNEL_FOLDERS = ("/proc/", "/sys/")


class SafetensorsFile:
    """An open file whose header has been checked. Reads are positional (pread), so threads may share it."""

    def __init__(self, path: Path) -> None:
        """Open ``path``; raises InputError for a malformed safetensors file, FileSystemError for an unreadable one."""
        self.path = path
        recover(path.parent)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe must not block
        except OSError as error:
            raise unreadable(path, error) from None
        try:
            if not stat.S_ISREG(mode := os.fstat(self._fd).st_mode) and not stat.S_ISDIR(mode):
                raise InputError(f"{path} is a device or a pipe; give a regular file")
            self.size = os.fstat(self._fd).st_size
            self.version = version_of(self._fd)
            self.header = self._read_header()
        except OSError as error:
            os.close(self._fd)
            raise unreadable(path, error) from None
        except BaseException:
            os.close(self._fd)
            raise

    def _read_header(self) -> Header:
        prefix = os.pread(self._fd, 8, 0)
        length = header_length(prefix, self.size, str(self.path))
        return parse_header(os.pread(self._fd, length, 8), self.size, str(self.path))

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Entries in the order of their data."""
        return self.header.tensors

    @property
    def metadata(self) -> Mapping[str, str]:
        """The header's ``__metadata__``."""
        return self.header.metadata

    def read_into(self, position: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``position`` of the file; raises InputError if the file ends first."""
        done = 0
        while done < len(buffer):
            got = os.preadv(self._fd, [buffer[done:]], position + done)
            if got == 0:
                raise InputError(f"{self.path} became shorter while it was read; try again when nothing writes to it")
            done += got

    def read(self, tensor: TensorInfo, start: int = 0, size: int | None = None) -> bytearray:
        """``size`` bytes of ``tensor`` from byte ``start``; by default the rest of it."""
        out = bytearray(tensor.size - start if size is None else size)
        self.read_into(self.header.data_start + tensor.begin + start, memoryview(out))
        return out

    def require_unchanged(self) -> None:
        """Raise InputError if the file at the path was replaced or written to since it was opened."""
        try:
            now = version_of(self.path)
        except OSError as error:
            raise unreadable(self.path, error) from None
        if now != self.version:
            raise InputError(
                f"{self.path} was changed since it was opened, so its digest would not be that of the weights that "
                "were read; put the file back, and let nothing write to it meanwhile"
            )

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def version_of(file: Path | int) -> tuple[int, int, int, int]:
    """Inode, size, mtime and ctime (ns), which differ between two files, and before and after a write to one.

    Whoever can write to a file can reset its mtime, but not its ctime, which the system updates at every write.
    """
    status = os.stat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's weights: ``files`` are open; ``root`` is the path that the user gave."""

    root: Path
    files: tuple[SafetensorsFile, ...]

    @property
    def is_directory(self) -> bool:
        """Whether the user gave a Hugging Face directory rather than a single file."""
        return self.root.is_dir()

    @property
    def is_adapter(self) -> bool:
        """Whether it is a directory with only an adapter, whose base model is elsewhere."""
        return self.is_directory and [file.path.name for file in self.files] == [ADAPTER_NAME]

    @property
    def folder(self) -> Path:
        """The folder in which configuration and tokenizer are expected."""
        return self.root if self.is_directory else self.root.parent

    def tensors(self) -> Iterator[tuple[SafetensorsFile, TensorInfo]]:
        """Every tensor with the file that holds it."""
        for file in self.files:
            for tensor in file.tensors:
                yield file, tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in self.files:
            file.close()


def holds_adapter(path: Path) -> bool:
    """Whether ``path`` is a folder that ``open_checkpoint`` opens as an adapter."""
    if not os.path.isdir(path) or any(os.path.isfile(path / name) for name in (INDEX_NAME, SINGLE_NAME)):
        return False
    return os.path.isfile(path / ADAPTER_NAME) and not any(path.glob("pytorch_model*.bin"))


def refuse_adapter_file(path: Path) -> None:
    """Raise InputError if ``path`` is an adapter's weights file, which is no model without the rest of its folder."""
    if path.name == ADAPTER_NAME and path.is_file():
        raise InputError(f"{path} holds the weights of an adapter alone; give its folder, {path.parent}")


def open_checkpoint(path: Path) -> Checkpoint:
    """Open ``path``: a ``.safetensors`` file, or a directory holding ``model.safetensors`` or shards with an index.

    A directory that holds an adapter, and not the weights of a whole model, is opened as that adapter.

    Raises InputError for a malformed file, a missing shard, a tensor that is not in the shard the index names, or a
    directory that holds only pickles; FileSystemError if a file cannot be read.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        raise missing_model(path) from None
    except (OSError, ValueError):
        pass  # opening it below gives the right error
    if not os.path.isdir(path):  # Path.is_dir raises for names that are too long and folders without permission
        return Checkpoint(path, (SafetensorsFile(path),))
    index = path / INDEX_NAME
    if index.is_file() and (path / SINGLE_NAME).is_file():
        raise InputError(f"{path} holds both {SINGLE_NAME} and {INDEX_NAME}, which may disagree; remove one of them")
    if index.is_file():
        return _open_sharded(path, index)
    if (path / SINGLE_NAME).is_file():
        return Checkpoint(path, (SafetensorsFile(path / SINGLE_NAME),))
    if holds_adapter(path):
        return _open_adapter(path)
    raise no_weights(path)


def _open_adapter(path: Path) -> Checkpoint:
    if not (path / ADAPTER_CONFIG).is_file():
        raise InputError(f"{path} holds {ADAPTER_NAME} without {ADAPTER_CONFIG}; give the folder that peft wrote")
    return Checkpoint(path, (SafetensorsFile(path / ADAPTER_NAME),))


def _class_of(path: Path) -> str:
    """The class that the folder's config.json names, which keeps its head as AutoModel does not."""
    with suppress(PrivctlError, LookupError, TypeError):
        name = parse_json(read_named_text(path / "config.json"), "config.json")["architectures"][0]
        if re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,99}", name):
            return str(name)
    return "AutoModelForCausalLM"


def no_weights(path: Path) -> InputError:
    """The error for a directory without safetensors that can be read, with advice on what it holds instead."""
    pickles = sorted(p.name for suffix in ("*.bin", "*.pt", "*.pth") for p in path.glob(suffix))
    if pickles:
        return InputError(
            f"{path} holds pickles ({pickles[0]}), which can run code when loaded; if you trust where they come from, "
            f"convert them with transformers: {_class_of(path)}.from_pretrained({str(path)!r})"
            f".save_pretrained({f'{path}-safetensors'!r}), and copy the tokenizer there"
        )
    gguf = sorted(p.name for p in path.glob("*.gguf"))
    if gguf:
        return InputError(f"{path} holds GGUF weights ({gguf[0]}) and no safetensors; {GGUF_ADVICE}")
    if (path / "config.json").is_file():
        if names := weight_files(path):
            return InputError(f"{path} {_holds_instead(path, names)}; to train from random weights, add --from-scratch")
        return InputError(
            f"{path} holds a config.json and no weights: an architecture, which privctl retrain trains; give a model "
            "that has weights"
        )
    inside = sorted({*path.glob("*.safetensors"), *(p.parent for p in path.glob(f"*/{SINGLE_NAME}*"))})
    such = f", such as {inside[0]}" if inside else ""
    return InputError(
        f"{path} holds neither {SINGLE_NAME} nor {INDEX_NAME}; give a .safetensors file, or a folder that holds "
        f"one{such}"
    )


def _holds_instead(path: Path, names: Sequence[str]) -> str:
    """What is wrong with the weights in ``path``, of which ``names`` are all files, and what to do about it."""
    if lost := [name for name in (SINGLE_NAME, INDEX_NAME) if name in names]:
        return f"has a {lost[0]} that is not a file, or a link to none; put the file in its place"
    if shards := [name for name in names if name.endswith(".safetensors")]:
        return f"holds {shards[0]}, but no {INDEX_NAME}, which says what is in it; copy it too, or save the model again"
    if names == [last_checkpoint(path)]:
        return f"has weights only in its checkpoints, such as {names[0]}; give one of these, with a tokenizer"
    return f"holds {names[0]}, but no weights in safetensors; save the model in that format"


#: Names of models on the Hugging Face hub: NAME or OWNER/NAME.
_HUB_NAME = re.compile(r"(\w[\w.-]{0,95}/)?\w[\w.-]{0,95}", re.ASCII)
_FILE_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".json")


def missing_model(path: Path) -> InputError:
    """The error for a model path that does not exist; it may be a model's name on the hub, which is never fetched."""
    message = f"{path} does not exist; give a model's folder, or a .safetensors file{_tilde_advice(path)}"
    if _HUB_NAME.fullmatch(str(path)) and path.suffix.lower() not in _FILE_SUFFIXES:
        message += (
            ". privctl fetches nothing: if this is a model on the Hugging Face hub, download it first "
            f"(hf download {path} --local-dir {path.name}) and give ./{path.name}"
        )
    return InputError(message)


def weight_map(index: Path) -> dict[str, str]:
    """The shard's file name by tensor name, from ``index``; raises InputError if it is malformed or names a path.

    transformers does not load a model whose index lacks ``metadata``, so that is refused as well.
    """
    data = parse_json(read_text(index), str(index))
    if not isinstance(data, dict):
        raise InputError(f'{index} is not a JSON object with "metadata" and "weight_map"; save the model again')
    mapping = data.get("weight_map")
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(v, str) for v in mapping.values()):
        raise InputError(
            f'{index} has no "weight_map", an object of tensor names and their shards; save the model again'
        )
    if not isinstance(data.get("metadata"), dict):
        raise InputError(
            f'{index} has no "metadata", an object without which transformers does not load the model; add '
            '"metadata": {} beside "weight_map"'
        )
    for shard in mapping.values():
        if Path(shard).name != shard:
            raise InputError(f"{index} names the shard {shard!r}; a shard must be a file beside the index")
    return mapping


def _open_sharded(folder: Path, index: Path) -> Checkpoint:
    mapping = weight_map(index)
    files: list[SafetensorsFile] = []
    try:
        for shard in sorted(set(mapping.values())):
            if not os.path.isfile(folder / shard):
                raise InputError(f"{index} names the shard {shard}, which is not in {folder}")
            files.append(SafetensorsFile(folder / shard))
        _check_index(index, mapping, files)
    except BaseException:
        for file in files:
            file.close()
        raise
    return Checkpoint(folder, tuple(files))


def _check_index(index: Path, mapping: dict[str, str], files: list[SafetensorsFile]) -> None:
    shard_of: dict[str, str] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in shard_of:
                raise InputError(f"{index.parent} holds the tensor {tensor.name!r} in two shards")
            shard_of[tensor.name] = file.path.name
    for name, shard in mapping.items():
        if shard_of.get(name) != shard:
            raise InputError(f"{index} puts the tensor {name!r} into {shard}, which does not hold it")
    for name, shard in shard_of.items():
        if name not in mapping:
            raise InputError(f"{index} does not list the tensor {name!r}, which {shard} holds")


def read_text(path: Path) -> str:
    """The file as UTF-8 text; raises InputError if there is none or it is not text, FileSystemError if unreadable."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None


def read_named_text(path: Path) -> str:
    """As ``read_text``, for a file that another file may name: refuses devices, pipes and endless files."""
    return named_text(read_named_bytes(path), path)


def named_text(data: bytes, path: Path) -> str:
    """The text of ``data``, which was read from ``path``; raises InputError if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        refuse_weights(data[:8], str(path))
        raise InputError(f"{path} is not UTF-8 text") from None


def read_named_bytes(path: Path) -> bytes:
    """The bytes of a file that another file may name; raises InputError unless it is ordinary and not too large."""
    recover(path.parent)
    require_ordinary(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            data = stream.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) > LARGEST_TEXT:
        refuse_weights(data[:8], str(path))
        raise InputError(
            f"{path} has more than {LARGEST_TEXT >> 20} MiB, which no report has; give NAME.report.json, or the model "
            "that it describes: its folder or its .safetensors file"
        )
    return data


def require_ordinary(path: Path) -> None:
    """Raise InputError if ``path`` is a device, a pipe, or a file that the kernel generates when it is read."""
    try:
        mode = os.stat(path).st_mode
        from_kernel = is_kernel_file(path)
    except ValueError:
        raise InputError(f"{str(path)!r} is not a file's name") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if from_kernel or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{path} is a device or a pipe; give a regular file")


def is_kernel_file(path: Path) -> bool:
    """Whether ``path`` resolves to a file that the kernel generates when it is read."""
    return os.path.realpath(path).startswith(_KERNEL_FOLDERS)


def missing_file(path: Path) -> InputError:
    """The error for a path at which there is no file."""
    return InputError(f"{path} is not a file; check the path{_tilde_advice(path)}")


def _tilde_advice(path: Path) -> str:
    """Advice about a ``~`` that the shell did not expand; empty if ``path`` does not begin with one."""
    if not str(path).startswith("~"):
        return ""
    return ". A shell leaves ~ as it is inside quotes: write $HOME, or leave the quotes out"


def unreadable(path: Path, error: OSError) -> InputError | FileSystemError:
    """The error for a file that could not be opened or read."""
    # A link that leads back to itself is no file either.
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)) or error.errno == errno.ELOOP:
        return missing_file(path)
    return FileSystemError(f"{path} cannot be read: {error.strerror}")
