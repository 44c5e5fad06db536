"""The midpoint attack: call a record a member where its loss lies below the middle of the two mean losses.

It is the attack that DP-Weights was evaluated with. A threshold that is judged on the records that set it, with its
direction, finds an accuracy above one half even where there is nothing to find (0.57 at 10 records a side). Here one
half of the records sets the threshold, the other half judges it, and the direction is fixed: a low loss is a member's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import AttackResult, Candidates, Settings
from audits.statistics.metrics import CLOPPER_PEARSON, clopper_pearson
from privctl.domain.evidence import Bound, Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Midpoint:
    """The threshold (nats a token), the sizes of the calibration halves, and the outcomes on the other halves."""

    threshold: float
    calibration_members: int
    calibration_nonmembers: int
    true_positives: int
    false_positives: int
    members: int
    nonmembers: int

    @property
    def correct(self) -> int:
        """Records of the test half that were called rightly."""
        return self.true_positives + self.nonmembers - self.false_positives

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.true_positives / (self.true_positives + self.false_positives + self.members)


class MidpointAttack:
    """Threshold the mean loss at a point that other records set."""

    name = "midpoint"
    #: Accuracy, precision and recall; F1 has no interval.
    quantities = 3

    def missing(self, candidates: Candidates) -> str:
        """Empty: too few records are evidence without an estimate."""
        return ""

    def run(self, candidates: Candidates, settings: Settings) -> AttackResult:
        """Accuracy, precision, recall and F1 on the test half."""
        table = candidates.table
        scores = candidates.mean_lp
        member_loss, nonmember_loss = table.split(-scores)
        if min(len(member_loss), len(nonmember_loss)) < 2:
            reason = "setting a threshold and testing it on other records needs 2 members and 2 non-members"
            nothing = Evidence(
                method=self.name, quantity="accuracy", estimate=None, bound=Bound.NONE, samples=table.samples,
                confidence=settings.confidence, reason=reason, details={"chance": 0.5},
            )  # fmt: skip
            return AttackResult(evidence=(nothing,), scores=scores)
        found = halved(member_loss, nonmember_loss, settings.seed)
        return AttackResult(evidence=_evidence(self.name, found, settings), scores=scores)


ATTACK = MidpointAttack()


def halved(members: NDArray[Any], nonmembers: NDArray[Any], seed: int) -> Midpoint:
    """Set the threshold on a random half of each side's losses, and count what it does on the other.

    The halves are drawn by numpy's PCG64 under ``seed``; an odd record goes to the test half. Each side needs 2.
    """
    random = np.random.default_rng(seed)
    sides = [side[random.permutation(len(side))] for side in (members, nonmembers)]
    (a_members, b_members), (a_nonmembers, b_nonmembers) = (np.split(side, [len(side) // 2]) for side in sides)
    threshold = (float(a_members.mean()) + float(a_nonmembers.mean())) / 2
    return Midpoint(
        threshold=threshold,
        calibration_members=len(a_members),
        calibration_nonmembers=len(a_nonmembers),
        true_positives=int((b_members < threshold).sum()),
        false_positives=int((b_nonmembers < threshold).sum()),
        members=len(b_members),
        nonmembers=len(b_nonmembers),
    )


def _evidence(name: str, found: Midpoint, settings: Settings) -> tuple[Evidence, ...]:
    total, called = found.members + found.nonmembers, found.true_positives + found.false_positives
    details: dict[str, float] = {
        "threshold": found.threshold,
        "seed": settings.seed,
        "calibration_members": found.calibration_members,
        "calibration_nonmembers": found.calibration_nonmembers,
        "true_positives": found.true_positives,
        "false_positives": found.false_positives,
    }
    samples = {"members": found.members, "nonmembers": found.nonmembers}

    def share(quantity: str, count: int, of: int, **extra: float) -> Evidence:
        lower, upper = clopper_pearson(count, of, 1 - settings.confidence) if of else (None, None)
        return Evidence(
            method=name,
            quantity=quantity,
            estimate=count / of if of else None,
            lower=lower,
            upper=upper,
            confidence=settings.confidence,
            interval=CLOPPER_PEARSON,
            samples=samples,
            details={**details, **extra},
            reason="" if of else "no record was called a member",
        )

    return (
        # Guessing the larger side is right that often.
        share("accuracy", found.correct, total, chance=max(found.members, found.nonmembers) / total),
        share("precision", found.true_positives, called, chance=found.members / total),
        share("recall", found.true_positives, found.members),
        Evidence(
            method=name,
            quantity="F1",
            estimate=found.f1,
            confidence=settings.confidence,
            bound=Bound.NONE,
            samples=samples,
            details=details,
        ),
    )
