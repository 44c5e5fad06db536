"""Results on disk, with the versions and the machine they were measured with."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from privctl.storage.atomic import write_bytes

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsFile:
    """The content of a results.json; ``save`` writes it."""

    place: Path
    results: Row

    @classmethod
    def read(cls, place: Path) -> ResultsFile:
        """Read the file at ``place``. Raises OSError, and ValueError where it is not JSON."""
        return cls(place=place, results=json.loads(place.read_text(encoding="utf-8")))

    def save(self) -> None:
        """Write the results atomically."""
        write_bytes(self.place, (json.dumps(self.results, indent=1) + "\n").encode())


def open_results(place: Path, settings: Row, start: Row) -> ResultsFile:
    """The results at ``place``, or new ones of ``settings`` and ``start``.

    Raises SystemExit where the results at ``place`` have other settings.
    """
    if not place.is_file():
        return ResultsFile(place=place, results={"settings": settings, **start})
    file = ResultsFile.read(place)
    if file.results["settings"] != settings:
        raise SystemExit(f"{place} has results of other settings; give their settings or another --output")
    return file


def machine() -> Row:
    """The numbers of processors and threads, on which times depend."""
    return {"processors": len(os.sched_getaffinity(0)), "threads": int(os.environ["OMP_NUM_THREADS"])}


def versions(*packages: str) -> Row:
    """Versions of Python and of ``packages``."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write ``lines`` to a text file, and return its path."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def write_jsonl(path: Path, objects: Iterable[Mapping[str, Any]]) -> Path:
    """Write ``objects`` to a JSONL file, and return its path."""
    return write_lines(path, (json.dumps(each, ensure_ascii=False) for each in objects))
