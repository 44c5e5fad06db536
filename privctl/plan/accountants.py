"""The result of ``privctl account``: a row for each accountant, one of which is the one to rely on."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.events import Ledger, SignBits
from privctl.domain.guarantee import Guarantee
from privctl.storage.digest import DigestedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountantRow:
    """One accountant's result: its guarantee, or why it has none, and the time it took."""

    key: str
    title: str
    seconds: float
    guarantee: Guarantee | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """A mechanism with every accountant's result.

    ``main`` is the key of the row to rely on. ``solved`` names the unknown: epsilon, or the parameter whose value for
    ``target`` is ``solution``. ``remarks`` are sentences about the mechanism and how it was interpreted, ``sources``
    are the files that it was read from.
    """

    mechanism: Ledger | SignBits
    rows: tuple[AccountantRow, ...]
    main: str
    solved: str
    delta: float
    target: float | None = None
    solution: float | None = None
    remarks: tuple[str, ...] = ()
    sources: tuple[DigestedFile, ...] = ()

    @property
    def differential(self) -> Guarantee:
        """The first guarantee with delta above 0, preferably the main row's; the main row's if there is none."""
        guarantees = [row.guarantee for row in self.rows if row.guarantee is not None]
        return next((g for g in [self.guarantee, *guarantees] if g.delta > 0), self.guarantee)

    @property
    def guarantee(self) -> Guarantee:
        """The main row's guarantee; raises ValueError with the reason if it has none."""
        row = next(row for row in self.rows if row.key == self.main)
        if row.guarantee is None:
            raise ValueError(row.failure)
        return row.guarantee
