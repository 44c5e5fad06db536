"""Published claims and their judgements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome, Verdict
from verify.prove.prover import Prover
from verify.prove.theorem import Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome, its reason, the number that does hold, and a witness that a reader can check by hand."""

    outcome: Outcome
    reason: str
    holds: str = ""
    witness: str = ""

    @property
    def in_full(self) -> str:
        """Everything except the outcome, as one line."""
        parts = (self.reason, self.holds and f"holds: {self.holds}", self.witness and f"check: {self.witness}")
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedClaim:
    """A claim of a paper in plain words; ``expected`` is the outcome in the book, and ``judge`` recomputes it."""

    key: str
    statement: str
    expected: Outcome
    judge: Callable[[Prover], Judgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper with the claims that can be checked by computer, and the statements that cannot."""

    title: str
    claims: tuple[PublishedClaim, ...]
    unchecked: tuple[Omission, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim:
    """A claim with its judgement; ``proofs`` holds the proofs made for it."""

    paper: str
    claim: PublishedClaim
    judgement: Judgement
    proofs: tuple[Proof, ...]
    seconds: float

    @property
    def undecided(self) -> bool:
        """Whether a verdict was expected and none was reached."""
        return self.judgement.outcome is Outcome.INCONCLUSIVE and self.claim.expected is not Outcome.INCONCLUSIVE

    @property
    def verdict(self) -> Verdict:
        """The row as a verdict in a report."""
        judgement = self.judgement
        return Verdict(
            subject=f"{self.claim.key}: {self.claim.statement}", outcome=judgement.outcome, reason=judgement.in_full
        )


def judge(paper: str, claims: Iterable[PublishedClaim], prover: Prover) -> Iterator[JudgedClaim]:
    """Judge claims lazily, one after another."""
    for claim in claims:
        before, started = len(prover.proofs), time.monotonic()
        judgement = claim.judge(prover)
        yield JudgedClaim(
            paper=paper,
            claim=claim,
            judgement=judgement,
            proofs=tuple(prover.proofs[before:]),
            seconds=time.monotonic() - started,
        )
