"""The interface of membership attacks, and the base of attacks that only score records."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from audits.membership.features import Ngrams
from audits.scores.table import ScoreTable
from audits.scores.tasks import AUDIO_CLASSIFICATION, CAUSAL_LM, IMAGE_CLASSIFICATION, MASKED_LM, SEQ2SEQ_LM
from audits.statistics.max_t import Statistics, rank_statistics
from audits.statistics.metrics import CLOPPER_PEARSON, auc, clopper_pearson, tpr_at_fpr
from audits.statistics.power import detectable_auc
from privctl.data.columns import HeadKind
from privctl.data.records import Record
from privctl.domain.evidence import Evidence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The false positive rates at which the TPR is reported.
RATES = (0.01, 0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an attack: the seed of its splits (not secret) and the confidence level of each interval."""

    seed: int = 0
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadows:
    """The scores of the audited records under shadow models, one row per model.

    ``lp`` [models, records] is the mean log-probability (nats) of each record; ``included`` [models, records] says
    whether the model was trained on it.
    """

    lp: NDArray[Any]
    included: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The records under attack: their scores, and the ``records`` themselves in the same order.

    ``digests`` identify the records (``Record.digest``). ``task`` is the model's task, see ``audits.scores.subject``.
    ``reference`` [records] is the mean log-probability (nats) under a reference model, or None.
    """

    table: ScoreTable
    records: Sequence[Record]
    digests: Sequence[bytes] = ()
    task: str = CAUSAL_LM
    reference: NDArray[Any] | None = None
    shadows: Shadows | None = None
    #: The scores [records] of attacks with queries of their own, and the reasons why others have none.
    answered: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    unasked: Mapping[str, str] = field(default_factory=dict)
    #: The kind of a classifier's head; None for other models.
    head: HeadKind | None = None
    #: The features of the blind baseline [records, columns]; None if they are computed from ``records``.
    features: Any = None
    #: The cache of ``once``; a modified copy of the candidates starts with an empty one.
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of ``make()``, cached under ``key``."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def ngrams(self, texts: Sequence[str]) -> Ngrams:
        """The n-grams of ``texts``, cached: without labels, attack and baseline use the same texts."""
        counts: Ngrams = self.once(("n-grams", *texts), lambda: Ngrams(texts))
        return counts

    @property
    def texts(self) -> list[str]:
        """The scored text of each record: for a pair the target, for an image empty."""
        return [record.text[record.start :] for record in self.records]

    @property
    def mean_lp(self) -> NDArray[np.float64]:
        """The mean log-probability (nats) of each record's target [records]."""
        return self.table.means(self.table.lp)


def why_no_next_tokens(candidates: Candidates) -> str:
    """Why an attack on next-token probabilities is not possible; empty if it is."""
    if candidates.task in (CAUSAL_LM, SEQ2SEQ_LM):
        return ""
    return f"it reads the probabilities of each next token, which a model for {candidates.task} does not give"


def why_no_token_probabilities(candidates: Candidates) -> str:
    """Why an attack on token probabilities, in any order, is not possible; empty if it is."""
    if candidates.task in (CAUSAL_LM, MASKED_LM, SEQ2SEQ_LM):
        return ""
    return f"it reads the probabilities of each token, which a model for {candidates.task} does not give"


def why_no_text(candidates: Candidates) -> str:
    """Why an attack that uses the text itself is not possible; empty if it is."""
    without = {IMAGE_CLASSIFICATION: "images", AUDIO_CLASSIFICATION: "sounds"}.get(candidates.task)
    return f"it reads the text of a record, and {without} have none" if without else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """The ``evidence``, of which the first item decides the verdict, and the ``scores`` [records] of the attack."""

    evidence: tuple[Evidence, ...]
    scores: NDArray[Any]


class Attack(Protocol):
    """An attack that distinguishes members from non-members."""

    @property
    def name(self) -> str:
        """The attack's name in ``ATTACKS``."""

    @property
    def quantities(self) -> int:
        """The number of intervals that ``run`` reports, for the Bonferroni correction."""

    def missing(self, candidates: Candidates) -> str:
        """Why the attack is not possible on these candidates; empty if it is."""

    def run(self, candidates: Candidates, settings: Settings) -> AttackResult:
        """The result of the attack; the first item of evidence always has ``chance``."""

    def tested(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> NDArray[Any]:
        """The scores [records] used by the permutation test; ``scores`` are the attack's own."""

    def statistics(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> Statistics:
        """The statistics used by the permutation test; ``scores`` [records] are those returned by ``tested``.

        They may learn which records are members only from the labels that they are called with.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreAttack:
    """An attack that gives each record one score, higher for more member-like, without a threshold.

    If ``score`` uses the labels, ``unlabelled`` is the score used by the permutation test: as close to ``score`` as
    possible without labels.
    """

    name: str
    score: Callable[[Candidates, Settings], NDArray[Any]]
    missing: Callable[[Candidates], str] = lambda _: ""
    unlabelled: Callable[[Candidates, Settings], NDArray[Any]] | None = None
    #: Whether a record's score is independent of all other records, so that processes can share the work.
    alone: bool = False

    @property
    def quantities(self) -> int:
        """The AUC, and the TPR at each of ``RATES``."""
        return 1 + len(RATES)

    def run(self, candidates: Candidates, settings: Settings) -> AttackResult:
        """Report the AUC, then the TPR at each of ``RATES``."""
        scores = self.score(candidates, settings)
        return AttackResult(
            evidence=curve_evidence(self.name, scores, candidates.table.member, settings), scores=scores
        )

    def tested(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> NDArray[Any]:
        """``scores`` [records], or ``unlabelled`` if there is one."""
        return scores if self.unlabelled is None else self.unlabelled(candidates, settings)

    def label_free_scores(self, candidates: Candidates, settings: Settings) -> NDArray[Any]:
        """Scores [records] that do not depend on the labels, as used by the permutation test."""
        return (self.unlabelled or self.score)(candidates, settings)

    def statistics(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> Statistics:
        """The AUC and the TPRs, see ``rank_statistics``."""
        return rank_statistics(scores, RATES)


def auc_evidence(name: str, scores: NDArray[Any], member: NDArray[np.bool_], settings: Settings) -> Evidence:
    """The AUC of ``scores`` [records] with its interval, and the smallest detectable AUC."""
    members, nonmembers = scores[member], scores[~member]
    alpha = 1 - settings.confidence
    result = auc(members, nonmembers, alpha)
    # Constant scores cannot detect anything, however many records there are.
    reach = detectable_auc(len(members), len(nonmembers), alpha) if scores.min() < scores.max() else math.nan
    return Evidence(
        method=name,
        quantity="AUC",
        estimate=result.value,
        lower=result.lower,
        upper=result.upper,
        confidence=settings.confidence,
        interval=result.interval,
        samples={"members": len(members), "nonmembers": len(nonmembers)},
        details={"chance": 0.5, **result.moments, **({} if math.isnan(reach) else {"detectable": reach})},
    )


def beyond_rank(rank: int, count: int, alpha: float) -> float:
    """An upper limit on the probability of exceeding the (``rank`` + 1)-th largest of ``count`` scores.

    It is exceeded with probability ``alpha`` / 2; the other half of ``alpha`` is for the TPR's lower limit. The
    probability is distributed as Beta(rank + 1, count - rank), whatever the distribution of the scores.
    """
    return clopper_pearson(rank, count, alpha)[1]


def _fpr_upper_limit(rate: float, nonmembers: int, alpha: float) -> float:
    """An upper limit on the false positive rate at the threshold chosen for ``rate``."""
    return beyond_rank(int(rate * nonmembers + 1e-9), nonmembers, alpha)


def curve_evidence(
    name: str, scores: NDArray[Any], member: NDArray[np.bool_], settings: Settings
) -> tuple[Evidence, ...]:
    """The AUC of ``scores`` [records] and the TPR at each of ``RATES``, with their intervals."""
    members, nonmembers = scores[member], scores[~member]
    alpha = 1 - settings.confidence
    evidence = [auc_evidence(name, scores, member, settings)]
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
            samples={"members": len(members), "nonmembers": len(nonmembers)},
            details={
                # The threshold comes from the same non-members, so random guessing exceeds the rate on average.
                # Compare with an upper limit on the false positive rate instead.
                **({} if point.reason else {
                    "chance": _fpr_upper_limit(rate, len(nonmembers), alpha),
                    "upper_rank": point.upper_rank,
                    "upper_positives": point.upper_positives,
                }),
                "threshold": point.threshold,
                "true_positives": point.true_positives,
                "false_positives": point.false_positives,
                "fpr_upper": point.fpr_upper,
            },
            reason=point.reason,
        ))  # fmt: skip
    return tuple(evidence)
