"""The midpoint attack: call a record a member if its loss is below the midpoint of the two mean losses.

This is the attack that DP-Weights was evaluated with. A threshold evaluated on the records that set it, with the better
direction, has an accuracy above one half even if there is no difference (0.57 at 10 records per side). Here one half of
the records sets the threshold, the other half evaluates it, and the direction is fixed: a low loss means a member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import AttackResult, Candidates, Settings
from audits.statistics.max_t import Statistics
from audits.statistics.metrics import CLOPPER_PEARSON, clopper_pearson
from privctl.domain.evidence import Bound, Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The name of the array with the number of records called members.
CALLED = "midpoint.called"


@dataclass(frozen=True, slots=True, kw_only=True)
class Midpoint:
    """The threshold (nats per token), the sizes of the calibration halves, and the outcomes on the test halves."""

    threshold: float
    calibration_members: int
    calibration_nonmembers: int
    true_positives: int
    false_positives: int
    members: int
    nonmembers: int

    @property
    def correct(self) -> int:
        """The number of records of the test half that were classified correctly."""
        return self.true_positives + self.nonmembers - self.false_positives

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.true_positives / (self.true_positives + self.false_positives + self.members)


class MidpointAttack:
    """Thresholds the mean loss at a point set by other records."""

    name = "midpoint"
    #: For accuracy, precision and recall; F1 has no interval.
    quantities = 3

    def missing(self, candidates: Candidates) -> str:
        """Always empty; with too few records, the evidence has no estimate."""
        return ""

    def run(self, candidates: Candidates, settings: Settings) -> AttackResult:
        """Accuracy, precision, recall and F1 on the test half."""
        table = candidates.table
        scores = candidates.mean_lp
        member_loss, nonmember_loss = table.split(-scores)
        if min(len(member_loss), len(nonmember_loss)) < 2:
            reason = "setting a threshold and testing it on other records needs 2 members and 2 non-members"
            # Each interval has its share of the error, measured or not.
            nothing = (
                Evidence(
                    method=self.name, quantity=quantity, estimate=None, bound=Bound.NONE, samples=table.samples,
                    confidence=settings.confidence, reason=reason, details=details,
                )
                for quantity, details in (("accuracy", {"chance": 0.5}), ("precision", {}), ("recall", {}))
            )  # fmt: skip
            return AttackResult(evidence=tuple(nothing), scores=scores)
        outcome = split_midpoint(member_loss, nonmember_loss, settings.seed)
        return AttackResult(evidence=_evidence(self.name, outcome, settings), scores=scores)

    def tested(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> NDArray[Any]:
        """``scores`` [records], which do not depend on the labels."""
        return scores

    def statistics(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> Statistics:
        """By how much the rate of "member" decisions is higher for members of the test half, in standard errors."""
        return partial(_rate_differences, scores, settings.seed)


ATTACK = MidpointAttack()


def called(results: Mapping[str, AttackResult]) -> dict[str, NDArray[np.int64]]:
    """How many of all records the threshold calls members, by the name of the array that an audit keeps.

    Ranks do not show on which side of the threshold a record lies. ``results`` are those of all attacks by name. Empty
    if no threshold was set.
    """
    result = results.get(MidpointAttack.name)
    threshold = None if result is None else result.evidence[0].details.get("threshold")
    if result is None or threshold is None:
        return {}
    return {CALLED: np.array([(-result.scores < threshold).sum()], np.int64)}


def split_midpoint(members: NDArray[Any], nonmembers: NDArray[Any], seed: int) -> Midpoint:
    """Set the threshold on a random half of each side's losses, and count the decisions on the other half.

    The halves are drawn by numpy's PCG64 under ``seed``; an odd record goes to the test half. Each side needs 2
    records.
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


def _rate_differences(scores: NDArray[Any], seed: int, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The statistic for each row of ``labels``, with the midpoint set on halves as in ``split_midpoint``, [rows, 1]."""
    random = np.random.default_rng(seed)
    means, tested = [], []
    for side in (labels, ~labels):
        size = int(side[0].sum())
        if size < 2:
            return np.zeros((len(labels), 1))
        places = np.nonzero(side)[1].reshape(len(labels), size)
        shuffled = scores[places[:, random.permutation(size)]]
        means.append(shuffled[:, : size // 2].mean(axis=1))
        tested.append(shuffled[:, size // 2 :])
    threshold = (means[0] + means[1])[:, None] / 2
    hits, errors = ((half > threshold).mean(axis=1) for half in tested)
    members, others = (half.shape[1] for half in tested)
    joined = (hits * members + errors * others) / (members + others)
    deviation = np.sqrt(joined * (1 - joined) * (1 / members + 1 / others))
    differences = np.divide(hits - errors, deviation, out=np.zeros(len(labels)), where=deviation > 0)
    return np.asarray(differences[:, None])


def _evidence(name: str, outcome: Midpoint, settings: Settings) -> tuple[Evidence, ...]:
    total, called = outcome.members + outcome.nonmembers, outcome.true_positives + outcome.false_positives
    details: dict[str, float] = {
        "threshold": outcome.threshold,
        "seed": settings.seed,
        "calibration_members": outcome.calibration_members,
        "calibration_nonmembers": outcome.calibration_nonmembers,
        "true_positives": outcome.true_positives,
        "false_positives": outcome.false_positives,
    }
    samples = {"members": outcome.members, "nonmembers": outcome.nonmembers}

    def share(quantity: str, count: int, total_count: int, **extra: float) -> Evidence:
        lower, upper = clopper_pearson(count, total_count, 1 - settings.confidence) if total_count else (None, None)
        return Evidence(
            method=name,
            quantity=quantity,
            estimate=count / total_count if total_count else None,
            lower=lower,
            upper=upper,
            confidence=settings.confidence,
            interval=CLOPPER_PEARSON,
            samples=samples,
            details={**details, **extra},
            reason="" if total_count else "no record was called a member",
        )

    return (
        # The accuracy of always guessing the larger side.
        share("accuracy", outcome.correct, total, chance=max(outcome.members, outcome.nonmembers) / total),
        share("precision", outcome.true_positives, called, chance=outcome.members / total),
        share("recall", outcome.true_positives, outcome.members),
        Evidence(
            method=name,
            quantity="F1",
            estimate=outcome.f1,
            confidence=settings.confidence,
            bound=Bound.NONE,
            samples=samples,
            details=details,
        ),
    )
