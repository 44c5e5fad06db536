"""Data at several paths, read in order as one data set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import CommandError

_DUE = "write records to a file, such as one of JSON lines, and give its path"
#: Characters of the longest path that Linux can open.
_LONGEST = 4095


@dataclass(frozen=True, slots=True)
class SeveralPaths:
    """Two or more paths in reading order, with the parts of the interface of Path that readers use."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return _quoted_list([str(path) for path in self.paths])

    @property
    def name(self) -> str:
        """The last parts of all paths, joined by `` + ``, as in reports."""
        return " + ".join(path.name for path in self.paths)

    @property
    def suffix(self) -> str:
        """Empty: each path has its own suffix."""
        return ""

    def is_dir(self) -> bool:
        """False: it is not a single folder."""
        return False

    def is_file(self) -> bool:
        """False: it is not a single file."""
        return False


#: Where records are: one path that ``data_files`` accepts, or several.
DataPath = Path | SeveralPaths


def data_at(given: str | os.PathLike[str] | SeveralPaths | Sequence[str | os.PathLike[str]]) -> DataPath:
    """The data at one or several paths; raises CommandError if there is none, or if one is given twice."""
    if isinstance(given, SeveralPaths):
        return given
    if isinstance(given, str | os.PathLike):
        return _path(given)
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise CommandError(f"{_type_name(given)} is given where data is expected; {_DUE}")
    paths = tuple(_path(item) for item in given)
    if not paths:
        raise CommandError("no path of data is given; give one")
    seen: set[str] = set()
    for path in paths:
        if (place := os.path.realpath(path)) in seen:
            raise CommandError(f"{path} is given twice, and each of its records would count as two; give it once")
        seen.add(place)
    return paths[0] if len(paths) == 1 else SeveralPaths(paths)


def paths_of(data: DataPath) -> tuple[Path, ...]:
    """The paths of ``data``, at least one."""
    return data.paths if isinstance(data, SeveralPaths) else (data,)


def real_paths(data: DataPath) -> tuple[str, ...]:
    """The paths of ``data``, absolute and with symbolic links resolved; links that loop stay as they are."""
    return tuple(map(os.path.realpath, paths_of(data)))


def _path(given: object) -> Path:
    """``given`` as a path; raises CommandError for other values. A text that cannot be a path is not quoted."""
    if not isinstance(given, str | os.PathLike):
        raise CommandError(f"{_type_name(given)} is given where data is expected; {_DUE}")
    place = os.fspath(given)
    if not isinstance(place, str) or (("\n" in place or len(place) > _LONGEST) and not os.path.lexists(place)):
        raise CommandError(f"a text that is not a path is given where data is expected; {_DUE}")
    return Path(place)


def _type_name(given: object) -> str:
    return f"a value of type {type(given).__name__}"


def _quoted_list(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    shown = names[:2] if more else names
    return ", ".join(shown) + more if more else f"{', '.join(shown[:-1])} and {shown[-1]}"
