"""Which files a ``--data`` path means: a file, a folder of shards, a saved ``datasets`` folder, a pattern, or ``-``."""

from __future__ import annotations

import atexit
import functools
import glob
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privctl.data.packed import suffix_of
from privctl.data.several import DataPath, SeveralPaths, paths_of
from privctl.domain.errors import FileSystemError, InputError
from privctl.storage.json_text import parse_json
from privctl.storage.reader import (
    ADAPTER_NAME,
    INDEX_NAME,
    SINGLE_NAME,
    missing_file,
    read_named_text,
    unreadable,
)

#: Suffixes (before ``.gz`` and ``.zst``) of files that hold records.
LINES, TABLES, TEXT, PARQUET, ARROW = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), ".txt", ".parquet", ".arrow"
RECORDS = (*LINES, *TABLES, TEXT, PARQUET, ARROW)
#: Suffixes of image files.
IMAGES = (".jpg", ".jpeg", ".png", ".ppm")
#: Suffixes of sound files.
SOUNDS = (".wav",)
STDIN = Path("-")

_SHARD = re.compile(r"(?P<split>.+?)[-_](?P<index>\d{5})-of-(?P<count>\d{5})")
#: Usual names of the splits of a data set.
_SPLITS = {"train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval"}
_CONFIG = "config.json"
#: JSON files of ``datasets`` that describe a data set and hold no records.
_STATE, _INFO, _SPLITTED = "state.json", "dataset_info.json", "dataset_dict.json"
_MOST_FILES = 100_000


def data_files(path: DataPath) -> tuple[Path, ...]:
    """The files of records that ``path`` means, sorted by name; ``path`` itself if it is a file.

    A folder may be one that ``datasets`` saved, or hold shards of one format, directly or in ``data``. If it holds
    several splits, ``FOLDER/SPLIT`` means one of them. A pattern such as ``data/*.parquet`` means the files it matches.
    ``-`` is standard input, which is kept until the program ends in a file that only its owner may read. For several
    paths, the files of each.

    Raises InputError for a folder without records, with several splits or formats, or with a missing shard, for a
    pattern that matches nothing, and for a file that is given twice; FileSystemError if a folder cannot be read.
    """
    if path == STDIN:
        return (_standard_input(),)
    if isinstance(path, SeveralPaths):
        files = tuple(file for part in path.paths for file in data_files(part))
        _without_repeats(path, [file for file in files if file.exists()])
        return files
    try:
        if path.is_dir():
            return _files_of_folder(path)
        if path.exists():
            return (path,)
        if any(mark in str(path) for mark in "*?["):
            return _matching(path)
        return _shards_of_split(path) or (path,)
    except OSError as error:
        raise unreadable(path, error) from None


def require_inputs(*paths: DataPath | None) -> None:
    """Raise InputError for the first of ``paths`` that does not exist; None and standard input pass.

    Commands call this before they check whether their outputs exist, and do both before any long work.
    """
    for path in (path for given in paths if given is not None for path in paths_of(given)):
        if path != STDIN and not path.exists() and not found(path):
            raise missing_file(path)


def found(path: DataPath) -> bool:
    """Whether all files that ``path`` means exist."""
    return path == STDIN or all(file.is_file() for file in data_files(path))


def holds_classes(path: DataPath) -> bool:
    """Whether ``path``, or one of several, is a folder of class folders.

    That is a folder with images or sounds in a subfolder, or without files of records.
    """
    if isinstance(path, SeveralPaths):
        return any(map(holds_classes, path.paths))
    if not path.is_dir() or any((path / name).is_file() for name in (_STATE, _SPLITTED)):
        return False
    try:
        inside = (entry.path for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
        if any(name.lower().endswith((*IMAGES, *SOUNDS)) for folder in inside for name in os.listdir(folder)):
            return True
        return not _records_in(path)
    except OSError as error:
        raise unreadable(path, error) from None


def shown(path: DataPath, file: Path) -> str:
    """The name in errors of ``file``, one of the files of ``path``."""
    return "standard input" if STDIN in paths_of(path) and file == _standard_input() else str(file)


def _files_of_folder(path: Path) -> tuple[Path, ...]:
    if (path / _SPLITTED).is_file():
        data = _json(path / _SPLITTED)
        splits = data.get("splits") if isinstance(data, dict) else None
        if not isinstance(splits, list) or not splits or not all(_is_name(split) for split in splits):
            raise InputError(f"{path / _SPLITTED} names no splits; save the data set again")
        if len(splits) > 1:
            raise _several_splits(path, splits)
        return _files_of_folder(path / splits[0])
    if (path / _STATE).is_file():
        return _saved(path)
    if _is_model(path):
        raise InputError(f"{path} is a model, not data; give a file of records, or a folder of them")
    files = _records_in(path)
    if not files:
        raise InputError(
            f"{path} holds no file of records; expected {', '.join(RECORDS)} (or these with .gz or .zst), or a folder "
            "that datasets saved"
        )
    splits = sorted({split for file in files if (split := _split_of(file)) is not None})
    if len(splits) > 1:
        raise _several_splits(path, splits)
    return _require_one_format(path, files)


def _is_model(path: Path) -> bool:
    """Whether the folder is a model's: it holds weights, or a configuration that names an architecture."""
    if any((path / name).is_file() for name in (SINGLE_NAME, INDEX_NAME, ADAPTER_NAME)):
        return True
    config = _json(path / _CONFIG) if (path / _CONFIG).is_file() else None
    return isinstance(config, dict) and not {"model_type", "architectures"}.isdisjoint(config)


def _saved(path: Path) -> tuple[Path, ...]:
    """The files of a folder that ``datasets`` saved, in the order of its ``state.json``."""
    state = _json(path / _STATE)
    entries: Any = state.get("_data_files") if isinstance(state, dict) else None
    listed = entries if isinstance(entries, list) else []
    names = [str(entry.get("filename")) if isinstance(entry, dict) else "" for entry in listed]
    if not names or not all(map(_is_name, names)):
        raise InputError(f"{path / _STATE} names no files beside it; save the data set again")
    if state.get("_indices_data_files"):
        raise InputError(f"{path} selects records of its files; save the data set again after flatten_indices()")
    missing = next((name for name in names if not (path / name).is_file()), None)
    if missing is not None:
        raise InputError(f"{path} lacks {missing}, which its {_STATE} names; copy the whole folder")
    return _without_repeats(path, [path / name for name in names])


def _records_in(path: Path) -> list[Path]:
    """The files of records in ``path`` or in its folder ``data``; raises InputError if they are in both."""
    outer, inner = _records_of(path), _records_of(path / "data")
    if inner and all(suffix_of(file) == ".json" for file in outer):
        return inner  # the .json files, such as dataset_infos.json, only describe the data set
    if outer and inner:
        raise InputError(
            f"{path} holds files of records ({outer[0].name}) and so does {path / 'data'}; give {path / 'data'}, or a "
            "pattern that matches what you mean"
        )
    return outer or inner


def _records_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    names = [entry.name for entry in os.scandir(folder) if not entry.name.startswith(".") and entry.is_file()]
    suffixes = {name: suffix_of(Path(name)) for name in names if name not in (_STATE, _INFO, _SPLITTED)}
    # A .json file beside other records only describes them.
    known = [name for name, suffix in suffixes.items() if suffix in RECORDS and suffix != ".json"]
    known = known or [name for name, suffix in suffixes.items() if suffix == ".json"]
    return [folder / name for name in sorted(known)]


def _matching(path: Path) -> tuple[Path, ...]:
    files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(name)]
    if not files:
        raise InputError(f"{path} matches no file; check the pattern, and quote it for the shell")
    return _require_one_format(path, files)


def _shards_of_split(path: Path) -> tuple[Path, ...]:
    """The shards of the split that the last part of ``path`` names; empty if there are none."""
    if not path.parent.is_dir() or not path.name or suffix_of(path) in RECORDS:
        return ()
    return _require_one_format(path, [file for file in _records_in(path.parent) if _split_of(file) == path.name])


def _split_of(file: Path) -> str | None:
    """The split that a file's name states; None if it states none."""
    stem = file.name.split(".")[0]
    if match := _SHARD.fullmatch(stem):
        return match["split"]
    return stem if stem in _SPLITS else None


def _require_one_format(path: Path, files: Sequence[Path]) -> tuple[Path, ...]:
    """``files``; raises InputError unless they are of one format with no shard missing."""
    if len(files) > _MOST_FILES:
        raise InputError(f"{path} holds {len(files)} files, and {_MOST_FILES} are read at most; join some")
    formats = {suffix_of(file) for file in files}
    if len(formats) > 1:
        raise InputError(
            f"{path} holds files of several formats ({', '.join(sorted(formats))}); give a pattern that matches one"
        )
    present: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if match := _SHARD.fullmatch(file.name.split(".")[0]):
            present.setdefault((f"{file.parent}/{match['split']}", int(match["count"])), set()).add(int(match["index"]))
    for (split, count), matching_files in present.items():
        if "*" not in str(path) and matching_files != set(range(count)):
            raise InputError(f"{split} has {len(matching_files)} of its {count} shards; copy the missing ones")
    return _without_repeats(path, files)


def _without_repeats(path: DataPath, files: Sequence[Path]) -> tuple[Path, ...]:
    """``files``; raises InputError if one occurs twice, since guarantees assume that each record is read once."""
    seen: dict[object, Path] = {}
    for file in files:
        status = file.stat()
        unpacked = file.with_name(file.name.removesuffix(".gz").removesuffix(".zst"))
        for key in ((status.st_dev, status.st_ino), unpacked):
            if (other := seen.setdefault(key, file)) is not file:
                raise InputError(
                    f"{path}: the records of {other} are in {file.name} too, and each would count as two; keep "
                    "one of them"
                )
    return tuple(files)


def _several_splits(path: Path, splits: Sequence[str]) -> InputError:
    example = path / ("train" if "train" in splits else splits[0])
    return InputError(f"{path} holds the splits {', '.join(splits)}; give one of them, such as {example}")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name and "\0" not in name


def _json(path: Path) -> Any:
    return parse_json(read_named_text(path), str(path))


@functools.cache
def _standard_input() -> Path:
    """A file with the content of standard input, so that it can be read repeatedly; its first bytes tell the format."""
    try:
        folder = tempfile.mkdtemp(prefix="privctl-")  # readable by its owner alone
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder, "stdin")
        with path.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
        with path.open("rb") as stream:
            begin = stream.read(4096)
        return path.rename(path.with_suffix(_suffix_by_content(begin)))
    except OSError as error:
        raise FileSystemError(f"standard input cannot be kept in {tempfile.gettempdir()}: {error.strerror}") from None


def _suffix_by_content(begin: bytes) -> str:
    if begin.startswith(b"PAR1"):
        return PARQUET
    if begin.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return ARROW
    if begin.startswith(b"\x1f\x8b"):
        return ".jsonl.gz"
    if begin.startswith(b"\x28\xb5\x2f\xfd"):
        return ".jsonl.zst"
    if begin.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"[")):
        return ".json"
    if not begin.strip():
        raise InputError("standard input is empty; expected records as JSON lines, a JSON array, parquet or Arrow")
    raise InputError(
        "standard input is neither JSON lines, nor a JSON array, nor parquet, nor Arrow; save it to a file whose "
        f"suffix says what it is ({', '.join(RECORDS)})"
    )
