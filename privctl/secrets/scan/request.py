"""The request of ``privctl secrets scan``."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privctl.data.columns import USUAL, Columns
from privctl.data.several import DataPath, data_at, paths_of
from privctl.domain.errors import CommandError

_BOOKS = (".jsonl", ".jsonl.gz")
#: The settings that affect the findings, other than the text column and the literals.
_LISTS = ("kinds", "patterns")
_PLAIN = ("by", "rare_words", "rare_least", "most_secrets", "pattern_seconds", "presidio")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """What to scan and what to search for; with ``output`` None nothing is written.

    Empty ``kinds`` means all in the table. ``patterns`` are ``NAME=REGEX`` as given, and ``pattern_seconds`` is the
    time that one may take for a record. ``rare_words`` N searches for words in at least ``rare_least`` and at most N
    records. ``presidio`` adds Presidio's recognizers. Raises CommandError for invalid or contradictory settings.
    """

    data: DataPath
    output: Path | None = None
    columns: Columns = USUAL
    kinds: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    literals: Path | None = None
    by: str | None = None
    rare_words: int | None = None
    rare_least: int = 1
    most_secrets: int = 1_000_000
    pattern_seconds: float = 1.0
    presidio: bool = False
    #: (I, N) scans the I-th of N shards of the data, from 1, and writes a partial result to ``output``.
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.output is not None and (not self.output.name.endswith(_BOOKS) or self.output.name in _BOOKS):
            raise CommandError(f"--output {self.output} ends neither in .jsonl nor .jsonl.gz; name the book so")
        if self.rare_words is None and self.rare_least != 1:
            raise CommandError("--rare-least needs --rare-words N, the most records that a rare word is in; give both")
        if self.rare_words is not None and not 1 <= self.rare_least <= self.rare_words:
            raise CommandError(
                f"--rare-words {self.rare_words} and --rare-least {self.rare_least} leave no number of records; give "
                "at least 1 for both, and no more for --rare-least than for --rare-words"
            )
        if not 1 <= self.most_secrets <= 10**9:
            raise CommandError(f"--most-secrets is {self.most_secrets}; it must lie between 1 and 1e9")
        if not (self.pattern_seconds > 0 and math.isfinite(self.pattern_seconds)):
            raise CommandError(f"--pattern-seconds is {self.pattern_seconds:g}; it must be a finite number above 0")
        if self.by is not None and not (self.by and self.by.isprintable()):
            raise CommandError(f"--by {self.by!r} is not a field name; name a field that every record has")
        if self.shard is not None and self.output is None:
            raise CommandError("--shard writes a partial result and nothing else; name its file with --output")
        written = {*map(os.path.realpath, self.places)}
        for path in (*paths_of(self.data), self.literals):
            if path is not None and os.path.realpath(path) in written:
                raise CommandError(f"{path} is an input and would be overwritten; choose another --output")

    @property
    def report(self) -> Path:
        """The path of the report, beside the book, whether or not it is written."""
        return report_beside(self.output or Path("secrets.jsonl"))

    @property
    def places(self) -> tuple[Path, ...]:
        """The files that may be written: the book and its report, or a shard's partial result, or none."""
        if self.output is None:
            return ()
        return (self.output,) if self.shard is not None else (self.output, self.report)


def report_beside(book: Path) -> Path:
    """The path of the report of a scan that writes ``book``."""
    return book.with_name(f"{book.name.removesuffix('.gz').removesuffix('.jsonl')}.report.json")


def settings_of(request: ScanRequest) -> dict[str, Any]:
    """The options that affect the findings, by name, as JSON values; the inverse of ``request_from``."""
    return {
        "text_column": request.columns.text,
        **{name: list(getattr(request, name)) for name in _LISTS},
        **{name: getattr(request, name) for name in _PLAIN},
    }


def request_from(
    settings: Mapping[str, Any], data: Sequence[str], literals: Path | None, output: Path | None
) -> ScanRequest:
    """The request of a scan with ``settings``. Raises as ``ScanRequest`` does; KeyError if a setting is missing."""
    others: dict[str, Any] = {name: settings[name] for name in _PLAIN}
    others |= {name: tuple(settings[name]) for name in _LISTS}
    columns = Columns(text=settings["text_column"])
    return ScanRequest(data=data_at(data), output=output, columns=columns, literals=literals, **others)
