"""Theorems and their proofs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from privctl.domain.verdict import Outcome
from verify.prove.terms import symbols


class SolverFinding(StrEnum):
    """The result of the solver.

    ``PROVED``: the assumptions are satisfiable and imply the claim. ``REFUTED``: a model satisfies the assumptions but
    not the claim. ``VACUOUS``: the assumptions are contradictory, so anything follows. ``UNDECIDED``: no answer, or
    none in time.
    """

    PROVED = "proved"
    REFUTED = "refuted"
    VACUOUS = "vacuous"
    UNDECIDED = "undecided"


_OUTCOMES = {
    SolverFinding.PROVED: Outcome.PROVED,
    SolverFinding.REFUTED: Outcome.REFUTED,
    SolverFinding.VACUOUS: Outcome.INCONCLUSIVE,
    SolverFinding.UNDECIDED: Outcome.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem:
    """That ``claim`` follows from ``assumptions``, as SMT-LIB formulas over the reals, and in words in ``statement``.

    Raises ValueError if the name is unsuitable for a file, or if the claim contains no symbol.
    """

    name: str
    statement: str
    assumptions: tuple[str, ...]
    claim: str

    def __post_init__(self) -> None:
        if not self.name.replace("-", "").replace(".", "").isalnum():
            raise ValueError(f"name is {self.name!r}; it must be letters, digits, dots and dashes")
        if not self.symbols:
            raise ValueError(f"claim is {self.claim!r}; it names no symbol, so a solver has nothing to find")

    @property
    def symbols(self) -> tuple[str, ...]:
        """The free symbols, sorted."""
        return tuple(sorted(set().union(*(symbols(text) for text in (*self.assumptions, self.claim)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A theorem and the solver's finding.

    ``model`` holds the values of a counterexample. ``checked`` is whether they were substituted into the formulas
    outside the solver and refute the claim. Irrational values are truncated and cannot be checked this way.
    """

    theorem: Theorem
    finding: SolverFinding
    reason: str
    seconds: float
    model: Mapping[str, Fraction] = field(default_factory=dict)
    checked: bool = False

    @property
    def outcome(self) -> Outcome:
        """The verdict on the theorem; a vacuous one is inconclusive."""
        return _OUTCOMES[self.finding]

    @property
    def witness(self) -> str:
        """The counterexample as text; empty if there is none."""
        return ", ".join(f"{name} = {value}" for name, value in self.model.items())
