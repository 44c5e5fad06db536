"""The interface of membership attacks, and the attacks that only score records."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from audits.membership.features import ngrams
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
    from scipy import sparse

#: False positive rates at which a TPR is reported.
RATES = (0.01, 0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an attack: the seed of its splits (not private) and the confidence of each interval."""

    seed: int = 0
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadows:
    """The scores of the audited records under shadow models, one row per model.

    ``lp`` [models, records] is the mean log-probability (nats) of each record, ``included`` [models, records] whether
    the model was trained on it.
    """

    lp: NDArray[Any]
    included: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The records whose membership is attacked: their scores, and the ``records`` themselves in the same order.

    ``digests`` identify the records (``Record.digest``). ``task`` is the model's task, see
    ``audits.scores.subject``. ``reference`` [records] is the mean log-probability (nats) under a reference model, None
    where none was given.
    """

    table: ScoreTable
    records: Sequence[Record]
    digests: Sequence[bytes] = ()
    task: str = CAUSAL_LM
    reference: NDArray[Any] | None = None
    shadows: Shadows | None = None
    #: The scores [records] of attacks that asked the model more, and why others did not.
    answered: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    unasked: Mapping[str, str] = field(default_factory=dict)
    #: What the head of a classifier predicts; None for other models.
    head: HeadKind | None = None
    #: What the blind baseline reads, [records, columns]; None where that follows from ``records``.
    features: Any = None
    #: What ``once`` has made; a changed copy of the candidates begins without.
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returns, called at the first use of ``key`` only."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def ngrams(self, texts: Sequence[str]) -> sparse.csr_array:
        """``ngrams`` of ``texts``, counted once: where there are no labels, attack and baseline read the same texts."""
        found: sparse.csr_array = self.once(("n-grams", *texts), lambda: ngrams(texts))
        return found

    @property
    def texts(self) -> list[str]:
        """The text of each record that is scored: of a pair the target; empty for an image."""
        return [record.text[record.start :] for record in self.records]

    @property
    def mean_lp(self) -> NDArray[np.float64]:
        """The target's mean log-probability (nats) of each record [records]."""
        return self.table.means(self.table.lp)


def why_no_next_tokens(candidates: Candidates) -> str:
    """Why an attack on next-token probabilities cannot be run; empty where a model gives them."""
    if candidates.task in (CAUSAL_LM, SEQ2SEQ_LM):
        return ""
    return f"it reads the probabilities of each next token, which a model for {candidates.task} does not give"


def why_no_token_probabilities(candidates: Candidates) -> str:
    """Why an attack on probabilities of tokens, in any order, cannot be run; empty where a model gives them."""
    if candidates.task in (CAUSAL_LM, MASKED_LM, SEQ2SEQ_LM):
        return ""
    return f"it reads the probabilities of each token, which a model for {candidates.task} does not give"


def why_no_text(candidates: Candidates) -> str:
    """Why an attack that reads the text itself cannot be run; empty where there is text."""
    without = {IMAGE_CLASSIFICATION: "images", AUDIO_CLASSIFICATION: "sounds"}.get(candidates.task)
    return f"it reads the text of a record, and {without} have none" if without else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """``evidence``, the first of which decides the verdict, and the ``scores`` [records] of the attack."""

    evidence: tuple[Evidence, ...]
    scores: NDArray[Any]


class Attack(Protocol):
    """An attack that tells members from non-members."""

    @property
    def name(self) -> str:
        """Its name in ``ATTACKS``."""

    @property
    def quantities(self) -> int:
        """How many intervals ``run`` reports, for the correction of their number."""

    def missing(self, candidates: Candidates) -> str:
        """Why it cannot be run on these candidates; empty where it can."""

    def run(self, candidates: Candidates, settings: Settings) -> AttackResult:
        """The result of the attack; the first evidence always has ``chance``."""

    def tested(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> NDArray[Any]:
        """The scores [records] that relabelled records are tested by; ``scores`` are the attack's own."""

    def statistics(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> Statistics:
        """What relabelled records are tested by; ``scores`` [records] are those that are ``tested``.

        Nothing but the labels it is called with may tell it which records are members.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreAttack:
    """An attack that gives every record one score, higher for more member-like, without a threshold.

    ``unlabelled`` is the score that relabelled records are tested by where ``score`` looks at the labels: as close to
    it as one can be that does not.
    """

    name: str
    score: Callable[[Candidates, Settings], NDArray[Any]]
    missing: Callable[[Candidates], str] = lambda _: ""
    unlabelled: Callable[[Candidates, Settings], NDArray[Any]] | None = None
    #: Whether a record's score depends on no other record, so that processes can score shares of them.
    alone: bool = False

    @property
    def quantities(self) -> int:
        """AUC, and the TPR at each of ``RATES``."""
        return 1 + len(RATES)

    def run(self, candidates: Candidates, settings: Settings) -> AttackResult:
        """AUC, then the TPR at each of ``RATES``."""
        scores = self.score(candidates, settings)
        return AttackResult(
            evidence=curve_evidence(self.name, scores, candidates.table.member, settings), scores=scores
        )

    def tested(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> NDArray[Any]:
        """``scores`` [records], or ``unlabelled``."""
        return scores if self.unlabelled is None else self.unlabelled(candidates, settings)

    def blindly(self, candidates: Candidates, settings: Settings) -> NDArray[Any]:
        """Scores [records] that do not depend on the labels: what is ``tested``."""
        return (self.unlabelled or self.score)(candidates, settings)

    def statistics(self, candidates: Candidates, settings: Settings, scores: NDArray[Any]) -> Statistics:
        """AUC and TPR, see ``rank_statistics``."""
        return rank_statistics(scores, RATES)


def auc_evidence(name: str, scores: NDArray[Any], member: NDArray[np.bool_], settings: Settings) -> Evidence:
    """The AUC of ``scores`` [records] with its interval, and the smallest detectable AUC."""
    members, nonmembers = scores[member], scores[~member]
    alpha = 1 - settings.confidence
    result = auc(members, nonmembers, alpha)
    # Scores that are all the same would have shown nothing, however many there are.
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
        details={"chance": 0.5, **({} if math.isnan(reach) else {"detectable": reach})},
    )


def beyond_rank(rank: int, count: int, alpha: float) -> float:
    """What the share beyond the (``rank`` + 1)-th largest of ``count`` scores exceeds with probability ``alpha`` / 2.

    That share is Beta(rank + 1, count - rank), whatever the distribution of the scores. The TPR's lower limit takes the
    other half of ``alpha``.
    """
    return clopper_pearson(rank, count, alpha)[1]


def _most_fpr(rate: float, nonmembers: int, alpha: float) -> float:
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
