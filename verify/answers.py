"""What a verifier answers, and how it shows a number."""

from __future__ import annotations

from privctl.domain.verdict import Outcome

#: An outcome with its reason.
Answer = tuple[Outcome, str]


def number(value: float | None) -> str:
    """``value`` to nine digits; a word where there is none."""
    return "missing" if value is None else f"{value:.9g}"
