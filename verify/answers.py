"""The answer of a verifier, and how it formats a number."""

from __future__ import annotations

from privctl.domain.verdict import Outcome

#: An outcome with its reason.
Answer = tuple[Outcome, str]


def number(value: float | None) -> str:
    """``value`` to nine significant digits, or "missing" for None."""
    return "missing" if value is None else f"{value:.9g}"
