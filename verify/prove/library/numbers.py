"""Claims that a number known by enclosures is at most a bound, or above it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from privctl.domain.verdict import Outcome
from verify.prove.enclosures.enclosure import Interval
from verify.prove.prover import Prover
from verify.prove.terms import lies_in, real
from verify.prove.theorem import SolverFinding, Theorem


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericComparison:
    """The claim that ``term``, over symbols in ``boxes``, is at most ``bound``, in words in ``statement``."""

    name: str
    statement: str
    boxes: Mapping[str, Interval]
    term: str
    bound: Fraction

    def at_most(self) -> Theorem:
        """The theorem that the term is at most the bound."""
        return self._theorem("at-most", f"(<= {self.term} {real(self.bound)})", self.statement)

    def above(self) -> Theorem:
        """The theorem that the term is above the bound for all values of the symbols in their boxes."""
        return self._theorem("above", f"(> {self.term} {real(self.bound)})", f"The contrary of: {self.statement}")

    def _theorem(self, suffix: str, claim: str, statement: str) -> Theorem:
        return Theorem(
            name=f"{self.name}-{suffix}",
            statement=statement,
            assumptions=tuple(lies_in(name, box) for name, box in self.boxes.items()),
            claim=claim,
        )


def decide(prover: Prover, comparison: NumericComparison) -> tuple[Outcome, str]:
    """The outcome and its reason. A refutation needs a proof too, as a model in the boxes need not be the number."""
    proof = prover.prove(comparison.at_most())
    if proof.finding is SolverFinding.PROVED:
        return Outcome.PROVED, proof.reason
    contrary = prover.prove(comparison.above())
    if contrary.finding is SolverFinding.PROVED:
        return Outcome.REFUTED, f"the contrary is proved: {contrary.reason}"
    if contrary.finding is SolverFinding.REFUTED:
        return Outcome.INCONCLUSIVE, "the numbers lie too close to the bound for their enclosures to tell"
    return Outcome.INCONCLUSIVE, contrary.reason
