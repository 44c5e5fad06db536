"""Lazy reading: one safetensors file, or a Hugging Face directory of one or many, opened without loading a tensor."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from privctl.domain.errors import FileSystemError, InputError
from privctl.storage.header import GGUF_ADVICE, Header, TensorInfo, header_length, parse_header, refuse_pickle
from privctl.storage.journal import recover
from privctl.storage.json_text import parse_json

INDEX_NAME = "model.safetensors.index.json"
#: What peft writes of an adapter: its weights and, beside them, what they are added to and how.
ADAPTER_NAME, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
SINGLE_NAME = "model.safetensors"
#: A report of a million tensors is smaller.
LARGEST_TEXT = 256 << 20
#: Where Linux shows its own state as files, some of them endless although they are called regular.
_MADE_UP = ("/proc/", "/sys/")


class SafetensorsFile:
    """An open file whose header has been checked. Reads by position (pread), so threads may share it."""

    def __init__(self, path: Path) -> None:
        """Open ``path``; raises InputError for a malformed safetensors file, FileSystemError for an unreadable one."""
        self.path = path
        recover(path.parent)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # or a pipe waits for its writer
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
        """Entries in the order of their bytes."""
        return self.header.tensors

    @property
    def metadata(self) -> Mapping[str, str]:
        """The header's ``__metadata__``."""
        return self.header.metadata

    def read_into(self, position: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from absolute byte ``position``; raises InputError where the file ends first."""
        done = 0
        while done < len(buffer):
            got = os.preadv(self._fd, [buffer[done:]], position + done)
            if got == 0:
                raise InputError(f"{self.path} became shorter while it was read; try again when nothing writes to it")
            done += got

    def read(self, tensor: TensorInfo, start: int = 0, size: int | None = None) -> bytearray:
        """``size`` bytes of ``tensor`` from byte ``start`` (all of it by default)."""
        out = bytearray(tensor.size - start if size is None else size)
        self.read_into(self.header.data_start + tensor.begin + start, memoryview(out))
        return out

    def require_unchanged(self) -> None:
        """Raise InputError where the file at the path is not as it was opened: another one, or written to since."""
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
        """Release the descriptor; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def version_of(file: Path | int) -> tuple[int, int, int, int]:
    """What tells a file from another one and from itself after a write: its number, size and two times [ns].

    Whoever may write to a file can set the time of its last write back, but not that of the last change of its status,
    which the system sets, at every write too.
    """
    found = os.stat(file)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's weights: ``files`` are open; ``root`` is the path the user named."""

    root: Path
    files: tuple[SafetensorsFile, ...]

    @property
    def is_directory(self) -> bool:
        """Whether the user named a Hugging Face directory rather than one file."""
        return self.root.is_dir()

    @property
    def is_adapter(self) -> bool:
        """Whether it is a directory with an adapter alone, whose base is elsewhere."""
        return self.is_directory and [file.path.name for file in self.files] == [ADAPTER_NAME]

    @property
    def folder(self) -> Path:
        """Where configuration and tokenizer would lie."""
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
    """Raise InputError for the weights of an adapter, which only their folder makes a model."""
    if path.name == ADAPTER_NAME and path.is_file():
        raise InputError(f"{path} holds the weights of an adapter alone; give its folder, {path.parent}")


def open_checkpoint(path: Path) -> Checkpoint:
    """Open ``path``: a ``.safetensors`` file, or a directory holding ``model.safetensors`` or shards with an index.

    A directory that holds an adapter, and no weights of a whole model, is opened as that adapter.

    Raises InputError for a malformed file, a missing shard, a tensor the index misplaces, or a directory that holds
    only pickles; FileSystemError where the system refuses.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        raise missing_model(path) from None
    except (OSError, ValueError):
        pass  # opening it says what is wrong
    if not os.path.isdir(path):  # Path.is_dir would raise on a name too long or a folder without permission
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
    raise _no_weights(path)


def _open_adapter(path: Path) -> Checkpoint:
    if not (path / ADAPTER_CONFIG).is_file():
        raise InputError(f"{path} holds {ADAPTER_NAME} without {ADAPTER_CONFIG}; give the folder that peft wrote")
    return Checkpoint(path, (SafetensorsFile(path / ADAPTER_NAME),))


def _no_weights(path: Path) -> InputError:
    """The error for a directory without safetensors, with what to do about what it holds instead."""
    pickles = sorted(p.name for suffix in ("*.bin", "*.pt", "*.pth") for p in path.glob(suffix))
    if pickles:
        return InputError(
            f"{path} holds pickles ({pickles[0]}), which can run code when loaded; convert them with "
            "AutoModel.from_pretrained(...).save_pretrained(..., safe_serialization=True)"
        )
    gguf = sorted(p.name for p in path.glob("*.gguf"))
    if gguf:
        return InputError(f"{path} holds GGUF weights ({gguf[0]}) and no safetensors; {GGUF_ADVICE}")
    if (path / "config.json").is_file():
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


#: What a model on the Hugging Face hub may be called: NAME or OWNER/NAME.
_HUB_NAME = re.compile(r"(\w[\w.-]{0,95}/)?\w[\w.-]{0,95}", re.ASCII)
_FILE_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".json")


def missing_model(path: Path) -> InputError:
    """The error for a model's path where nothing is: it may be the name of a model on a hub, which is never fetched."""
    message = f"{path} does not exist; give a model's folder, or a .safetensors file{_unexpanded(path)}"
    if _HUB_NAME.fullmatch(str(path)) and path.suffix.lower() not in _FILE_SUFFIXES:
        message += (
            ". privctl fetches nothing: if this is a model on the Hugging Face hub, download it first "
            f"(hf download {path} --local-dir {path.name}) and give ./{path.name}"
        )
    return InputError(message)


def weight_map(index: Path) -> dict[str, str]:
    """The index's tensor name -> shard name; raises InputError for a malformed one or a name that is no plain file.

    transformers loads no model whose index lacks ``metadata``, so no command takes such an index.
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
    """The file as UTF-8 text; raises InputError or FileSystemError with one sentence."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None


def read_named_text(path: Path) -> str:
    """As ``read_text``, for a file that another one may have named: devices, pipes and the endless are refused."""
    return named_text(read_named_bytes(path), path)


def named_text(data: bytes, path: Path) -> str:
    """The text of ``data``, which was read from ``path``; raises InputError where it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        refuse_pickle(data[:8], str(path))
        raise InputError(f"{path} is not UTF-8 text") from None


def read_named_bytes(path: Path) -> bytes:
    """The bytes of a file that another one may have named; raises InputError for what is no ordinary file of text."""
    recover(path.parent)
    require_ordinary(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            data = stream.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) > LARGEST_TEXT:
        raise InputError(f"{path} has more than {LARGEST_TEXT >> 20} MiB, which no report has; give a smaller file")
    return data


def require_ordinary(path: Path) -> None:
    """Raise InputError where ``path`` is a device, a pipe, or a file that the kernel makes up when it is read."""
    try:
        mode = os.stat(path).st_mode
        made_up = is_made_up(path)
    except ValueError:
        raise InputError(f"{str(path)!r} is not a file's name") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if made_up or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{path} is a device or a pipe; give a regular file")


def is_made_up(path: Path) -> bool:
    """Whether ``path`` leads to a file that the kernel makes up when it is read."""
    return os.path.realpath(path).startswith(_MADE_UP)


def not_there(path: Path) -> InputError:
    """The error for a path where no file is."""
    return InputError(f"{path} is not a file; check the path{_unexpanded(path)}")


def _unexpanded(path: Path) -> str:
    """What to do about a ``~`` that no shell replaced; empty where ``path`` begins with none."""
    if not str(path).startswith("~"):
        return ""
    return ". A shell leaves ~ as it is inside quotes: write $HOME, or leave the quotes out"


def unreadable(path: Path, error: OSError) -> InputError | FileSystemError:
    """The error for a file that could not be opened or read."""
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return not_there(path)
    return FileSystemError(f"{path} cannot be read: {error.strerror}")
