"""Signature files next to a report or a log: privctl's own, and bundles of other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from privctl.domain.errors import InputError
from privctl.gate.files import read_bounded
from privctl.reports.signing import LARGEST, signatures_of

Accepted = TypeVar("Accepted")


def first_accepted(path: Path, check: Callable[[bytes], Accepted]) -> Accepted:
    """Return the result of ``check`` for the first signature file next to ``path`` that it accepts.

    Raises InputError if it accepts none.
    """
    reasons = []
    for place in signatures_of(path):
        try:
            return check(read_bounded(place, LARGEST))
        except InputError as fault:
            reasons.append(str(fault) if str(fault).startswith(str(place)) else f"{place} {fault}")
    raise InputError("; ".join(reasons))
