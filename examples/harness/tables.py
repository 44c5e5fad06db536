"""Markdown tables that combine rows which differ only in the seed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def grouped(rows: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], K]) -> dict[K, list[Any]]:
    """The rows by ``key``, in the order of first occurrence."""
    groups: dict[K, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean_and_range(values: Sequence[float]) -> str:
    """The mean as text; for several values also the lowest and the highest."""
    more = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ""
    return f"{mean(values):.4g}{more}"


def ends(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float, float]:
    """The lowest lower end, mean estimate and highest upper end of ``[estimate, lower, upper]`` in each row."""
    return min(row[name][1] for row in rows), mean(row[name][0] for row in rows), max(row[name][2] for row in rows)


def interval(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """The mean estimate, and the lowest and highest ends of the intervals, as text."""
    low, middle, high = ends(rows, name)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
