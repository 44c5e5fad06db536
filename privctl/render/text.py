"""Plain-text tables and numbers for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by width, numbers to the right, one line a row, ending in a newline."""
    cells = [list(headings), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    right = [all(_numeric(row[i]) for row in cells[1:]) for i in range(len(headings))]
    lines = []
    for row in cells:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines) + "\n"


def number(value: float | None, digits: int = 6) -> str:
    """``value`` with ``digits`` significant digits; None is a dash."""
    return "-" if value is None else f"{value:.{digits}g}"


def size(count: int) -> str:
    """A number of bytes, in the unit that fits."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def short(digest: str) -> str:
    """A digest cut to what a reader compares by eye."""
    algorithm, _, value = digest.partition(":")
    return f"{algorithm}:{value[:12]}"


def _numeric(cell: str) -> bool:
    if cell in ("-", ""):
        return True
    try:
        float(cell.replace(" ", "").rstrip("%"))
    except ValueError:
        return False
    return True
