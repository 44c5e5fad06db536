"""Sounds to train on: a folder with one subfolder of WAV files per class, or records that name WAV files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from privctl.data.columns import USUAL, Columns, HeadKind, label_of, string_of
from privctl.data.decoded import Decoded
from privctl.data.images import class_files
from privctl.data.packed import suffix_of
from privctl.data.places import LINES, SOUNDS, STDIN, TABLES, data_files, found, holds_classes
from privctl.data.rows import Row, column_names, rows_of
from privctl.data.several import DataPath, paths_of
from privctl.data.wav import read_wav
from privctl.domain.errors import CommandError, InputError, PrivctlError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Fields that may name a record's WAV file, in order of preference.
PATHS = ("audio", "path", "file", "file_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundSet:
    """Sounds of one sampling rate with their labels.

    ``waves`` has a float32 array (samples,) per sound; ``labels`` and ``places`` (the file, for errors) an entry each.
    """

    waves: Sequence[NDArray[np.float32]]
    labels: tuple[str, ...]
    places: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)


def read_sounds(path: DataPath, *, rate: int, columns: Columns | None = None) -> SoundSet:
    """Read the sounds at ``path``, which must have a sampling rate of ``rate`` Hz.

    A folder has one subfolder of WAV files (see ``read_wav``) per class. Records (see ``rows_of``) name a WAV file,
    relative to the folder of the records, in one of the fields ``PATHS``, and its label in ``label`` unless ``columns``
    names another field. The ``problem`` of ``columns`` says what a label is (see ``label_of``). Sounds of several paths
    are concatenated.

    Raises InputError, naming the file, for a file that is not such a sound, for another sampling rate and for an empty
    set; CommandError for any other kind of path; FileSystemError if a file cannot be read.
    """
    columns = columns or USUAL
    named = [sound for one in paths_of(path) for sound in _labelled(one, columns)]
    waves = []
    for (file, _), (wave, its_rate) in zip(named, waves_of(path, (file for file, _ in named)), strict=True):
        if its_rate != rate:
            raise InputError(
                f"{file} has {its_rate} samples a second, and the model takes {rate}; resample all sounds to {rate} Hz"
            )
        waves.append(wave)
    if not waves:
        raise InputError(f"{path} holds no sounds; expected one subfolder a class, of WAV files")
    return SoundSet(waves=waves, labels=tuple(label for _, label in named), places=[str(file) for file, _ in named])


def sound_files(path: DataPath) -> list[Path]:
    """The WAV files at ``path``, in class folders or named by records; empty for other data."""
    files: list[Path] = []
    for folder in paths_of(path):
        if holds_classes(folder):
            files += [file for _, file in class_files(folder) if file.suffix.lower() in SOUNDS]
        elif lists_sounds(folder):
            files += listed_sounds(folder)
    return files


def waves_of(path: DataPath, files: Iterable[Path]) -> Iterator[tuple[NDArray[np.float32], int]]:
    """(samples, sampling rate) of each of ``files``, which belong to ``path`` and may repeat; see ``read_sounds``."""
    read, decoded = set[Path](), Decoded(path)
    for file in files:
        wave, rate = read_wav(file, str(file))
        if file not in read:
            read.add(file)
            decoded.read(file.stat().st_size)
        decoded.add(wave.nbytes)
        yield wave, rate


def _labelled(path: Path, columns: Columns) -> Iterator[tuple[Path, str]]:
    if holds_classes(path):
        if columns.problem is not HeadKind.ONE:
            raise InputError(
                f"{path} gives each sound the one label of its folder, and the model's problem_type is "
                f"{columns.problem}; name the files in JSON lines, with labels"
            )
        yield from ((file, label) for label, file in class_files(path, SOUNDS))
        return
    if path == STDIN or not found(path):
        raise CommandError(f"{path} is neither a folder of class folders nor a file of records that name WAV files")
    for file, row in _listed_rows(path, columns):
        yield file, label_of(row.fields, row.where, columns)


def _listed_rows(path: Path, columns: Columns = USUAL) -> Iterator[tuple[Path, Row]]:
    """(WAV file, record) of each record."""
    name = next((name for name in PATHS if name in (column_names(path) or ())), None)
    if name is None:
        fields = ", ".join(column_names(path) or ())
        raise InputError(f"{path} names no WAV files: its fields are {fields}; expected one of {', '.join(PATHS)}")
    folder = data_files(path)[0].parent
    for row in rows_of(path, replace(columns, text=name)):
        yield folder / string_of(row.fields, name, row.where, "give the path of a WAV file"), row


def lists_sounds(path: Path) -> bool:
    """Whether ``path`` is a file of records whose first record names a WAV file and has no text."""
    if suffix_of(path) not in (*LINES, *TABLES) or not path.is_file():
        return False
    try:
        fields = next(rows_of(path, USUAL)).fields if suffix_of(path) in LINES else None
        if fields is None:
            names = column_names(path) or ()
            fields = next(rows_of(path, replace(USUAL, text=names[0]))).fields
    except (PrivctlError, StopIteration):
        return False  # the reader will report the error
    given = next((fields[name] for name in PATHS if name in fields), None)
    sound = isinstance(given, str) and given.lower().endswith(SOUNDS)
    return sound and not {"text", "prompt", "messages"}.intersection(fields)


def listed_sounds(path: Path) -> list[Path]:
    """The WAV files that the records at ``path`` name; raises as ``read_sounds`` does."""
    return [file for file, _ in _listed_rows(path)]
