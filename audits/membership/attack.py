"""What a membership attack is given and what it returns, and the kind that only scores records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from audits.scores.rows import CAUSAL_LM, IMAGE_CLASSIFICATION
from audits.scores.table import ScoreTable
from audits.statistics.metrics import CLOPPER_PEARSON, auc, clopper_pearson, tpr_at_fpr
from audits.statistics.power import detectable_auc
from privctl.data.records import Record
from privctl.domain.evidence import Evidence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: False positive rates that a TPR is reported at.
RATES = (0.01, 0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an attack may be told: the seed of its splits (not private) and the confidence of each interval."""

    seed: int = 0
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadows:
    """What shadow models say of the audited records, one row a model.

    ``lp`` [models, records] is the mean log-probability (nats) of each record, ``included`` [models, records] whether
    the model was trained on it.
    """

    lp: NDArray[Any]
    included: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The records whose membership is to be told: their scores, and the ``records`` themselves in the same order.

    ``digests`` are what the records are known by (``Record.digest``). ``task`` names what the model is for, see
    ``audits.scores.subject``. ``reference`` [records] is the mean log-probability (nats) under a reference model, None
    where none was given.
    """

    table: ScoreTable
    records: Sequence[Record]
    digests: Sequence[bytes] = ()
    task: str = CAUSAL_LM
    reference: NDArray[Any] | None = None
    shadows: Shadows | None = None

    @property
    def texts(self) -> list[str]:
        """The text of each record; empty for an image."""
        return [record.text for record in self.records]

    @property
    def mean_lp(self) -> NDArray[np.float64]:
        """The target's mean log-probability (nats) of each record [records]."""
        return self.table.means(self.table.lp)


def of_next_tokens(candidates: Candidates) -> str:
    """Why an attack that reads how each next token was ranked cannot be run; empty for a causal language model."""
    if candidates.task == CAUSAL_LM:
        return ""
    return f"it reads the probabilities of each next token, which a model for {candidates.task} does not give"


def of_texts(candidates: Candidates) -> str:
    """Why an attack that reads the text itself cannot be run; empty where there is text."""
    return "it reads the text of a record, and images have none" if candidates.task == IMAGE_CLASSIFICATION else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """``evidence``, of which the first is what the attack is judged by, and the ``scores`` [records] it gave."""

    evidence: tuple[Evidence, ...]
    scores: NDArray[Any]


class Attack(Protocol):
    """A way to tell members from non-members."""

    @property
    def name(self) -> str:
        """Its name in ``ATTACKS``."""

    @property
    def quantities(self) -> int:
        """How many intervals ``run`` reports, for the correction of their number."""

    def missing(self, candidates: Candidates) -> str:
        """Why it cannot be run on these candidates; empty where it can."""

    def run(self, candidates: Candidates, settings: Settings) -> AttackResult:
        """What the attack found; the first evidence always has ``chance``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreAttack:
    """An attack that gives every record one number, the higher the more member-like, and no threshold."""

    name: str
    score: Callable[[Candidates, Settings], NDArray[Any]]
    missing: Callable[[Candidates], str] = lambda _: ""

    @property
    def quantities(self) -> int:
        """AUC, and the TPR at each of ``RATES``."""
        return 1 + len(RATES)

    def run(self, candidates: Candidates, settings: Settings) -> AttackResult:
        """AUC, then the TPR at each of ``RATES``."""
        scores = self.score(candidates, settings)
        return AttackResult(evidence=curve(self.name, candidates.table, scores, settings), scores=scores)


def area(name: str, scores: NDArray[Any], member: NDArray[np.bool_], settings: Settings) -> Evidence:
    """The AUC of ``scores`` [records] with its interval, and the smallest one that would be told from chance."""
    members, nonmembers = scores[member], scores[~member]
    alpha = 1 - settings.confidence
    found = auc(members, nonmembers, alpha)
    # Scores that are all the same would have shown nothing, however many there are.
    reach = detectable_auc(len(members), len(nonmembers), alpha) if scores.min() < scores.max() else math.nan
    return Evidence(
        method=name,
        quantity="AUC",
        estimate=found.value,
        lower=found.lower,
        upper=found.upper,
        confidence=settings.confidence,
        interval=found.interval,
        samples={"members": len(members), "nonmembers": len(nonmembers)},
        details={"chance": 0.5, **({} if math.isnan(reach) else {"detectable": reach})},
    )


def beyond_rank(rank: int, count: int, alpha: float) -> float:
    """What the share beyond the (``rank`` + 1)-th largest of ``count`` scores exceeds with probability ``alpha`` / 2.

    It is Beta(rank + 1, count - rank), whatever the scores' law; the other half of alpha is the TPR's lower limit's.
    """
    return clopper_pearson(rank, count, alpha)[1]


def _most_fpr(rate: float, nonmembers: int, alpha: float) -> float:
    """The most that the false positive rate at the threshold of ``rate`` can be."""
    return beyond_rank(int(rate * nonmembers + 1e-9), nonmembers, alpha)


def curve(name: str, table: ScoreTable, scores: NDArray[Any], settings: Settings) -> tuple[Evidence, ...]:
    """The AUC of ``scores`` [records] and the TPR at each of ``RATES``, with their intervals."""
    members, nonmembers = table.split(scores)
    alpha = 1 - settings.confidence
    evidence = [area(name, scores, table.member, settings)]
    for rate in RATES:
        point = tpr_at_fpr(members, nonmembers, rate, alpha)
        evidence.append(Evidence(
            method=name,
            quantity=f"TPR at {100 * rate:g} % FPR",
            estimate=None if point.reason else point.tpr,
            lower=None if point.reason else point.tpr_lower,
            upper=None if point.reason else point.tpr_upper,
            confidence=settings.confidence,
            interval=CLOPPER_PEARSON,
            samples=table.samples,
            details={
                # The threshold is read off the same non-members, so a guess exceeds the rate on average: what the
                # interval compares with is the most that the false positive rate there can be.
                **({} if point.reason else {"chance": _most_fpr(rate, len(nonmembers), alpha)}),
                "threshold": point.threshold,
                "true_positives": point.true_positives,
                "false_positives": point.false_positives,
                "fpr_upper": point.fpr_upper,
                "fpr_certified": float(point.certified),
            },
            reason=point.reason,
        ))  # fmt: skip
    return tuple(evidence)
