"""What the membership part of an audit is asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from audits.claims import CurveClaim, EpsilonClaim
from audits.membership.verdict import LEAST_AUC
from privctl.data.several import DataPath


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRequest:
    """Which records to attack, and how; empty ``attacks`` means all that apply, with ``thorough`` those too that cost.

    ``thorough`` goes with empty ``attacks``.
    """

    members: DataPath
    nonmembers: DataPath
    #: The manifest of the split that both files are of; None where privctl did not draw it.
    split: Path | None = None
    attacks: tuple[str, ...] = ()
    thorough: bool = False
    shadow: Path | None = None
    #: The field whose values say which records belong together; None where each record stands for itself.
    group_by: str | None = None
    seed: int = 0
    least_auc: float = LEAST_AUC
    #: Whether to look for why members stand out.
    explain: bool = False
    #: What a drawn split is held against: claims, the curve of the mechanism for so many examples together, and the
    #: delta of the bounds.
    claims: tuple[EpsilonClaim, ...] = ()
    curve: Callable[[int], CurveClaim | None] = lambda _: None
    #: The field whose values make the examples that the curve protects; None where each record is one.
    unit: str | None = None
    delta: float | None = None
