"""The options of the membership part of an audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from audits.claims import CurveClaim, EpsilonClaim
from audits.membership.verdict import LEAST_AUC
from privctl.data.several import DataPath


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRequest:
    """Which records to attack, and how; empty ``attacks`` means all that apply, costly ones only if ``thorough``.

    ``thorough`` requires empty ``attacks``.
    """

    members: DataPath
    nonmembers: DataPath
    #: The manifest of the split that both files belong to; None if privctl did not draw it.
    split: Path | None = None
    attacks: tuple[str, ...] = ()
    thorough: bool = False
    shadow: Path | None = None
    #: The field that groups records into units; None if each record is its own.
    group_by: str | None = None
    seed: int = 0
    least_auc: float = LEAST_AUC
    #: Whether to report why members stand out.
    explain: bool = False
    #: For a drawn split: the claims to test, the mechanism's trade-off curve for that many examples jointly, and the
    #: delta of the bounds.
    claims: tuple[EpsilonClaim, ...] = ()
    curve: Callable[[int], CurveClaim | None] = lambda _: None
    #: The field that groups records into the examples protected by the curve; None if each record is one.
    unit: str | None = None
    delta: float | None = None
