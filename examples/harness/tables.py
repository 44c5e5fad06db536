"""Markdown tables of rows that differ in the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table, a line each."""
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def grouped(rows: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], K]) -> dict[K, list[Any]]:
    """Rows by ``key``, in the order of first occurrence."""
    groups: dict[K, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean_and_range(values: Sequence[float]) -> str:
    """The mean, and of several values the lowest and the highest."""
    more = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ""
    return f"{mean(values):.4g}{more}"


def ends(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float, float]:
    """Of ``[estimate, lower, upper]`` in each row: lowest lower end, mean estimate, highest upper end."""
    return min(row[name][1] for row in rows), mean(row[name][0] for row in rows), max(row[name][2] for row in rows)


def interval(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """The mean estimate, and the lowest and highest end of the intervals."""
    low, middle, high = ends(rows, name)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
