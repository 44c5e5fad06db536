"""Whether the records can be told apart without the model, and by how much an attack beats that.

The blind baseline tells members from non-members by their looks alone (Das et al. 2024). If it can, the two files
differ by themselves, and an attack that tells them apart shows nothing about the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, Settings, area
from audits.membership.features import looks
from audits.statistics.paired import auc_difference
from privctl.data.records import Record
from privctl.domain.evidence import Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How evidence that says nothing about the model is called.
BLIND, LENGTH, CONTROL = "blind baseline", "length baseline", "reference control"
DIFFERENCE = "AUC over the blind baseline's"
#: A control that would miss a greater AUC than this is silent because it is deaf.
SILENT = 0.55
#: A blind baseline that would miss a greater AUC than this is mentioned where an attack finds something.
_HEARS = 0.65
#: With fewer judged records on a side, DeLong's variance of a difference is too small too often: at 3 against 30 an
#: interval that may be wrong 5 times in 10,000 is wrong 185 times, at 20 against 20 still 18.
_FEW = 50
#: Weight of the squared coefficients, for features in unit rows; and the most steps of the optimizer.
_RIDGE, _STEPS = 1e-4, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The ``evidence`` of every baseline, and the ``scores`` [records] of the blind one: NaN where it may not judge."""

    evidence: tuple[Evidence, ...]
    scores: NDArray[np.float64]

    @property
    def confounded(self) -> str:
        """What tells members from non-members without the model; empty where nothing does."""
        found = [item.method for item in self.evidence if _apart(item)]
        return " and ".join(found)

    @property
    def deaf(self) -> str:
        """What is to be said where the blind baseline could have missed a difference that an attack finds."""
        reach = next((i.details.get("detectable", 1.0) for i in self.evidence if i.method == BLIND), 1.0)
        missed = f"an AUC below {reach:.2f}" if reach < 1 else "any difference"
        return "" if reach <= _HEARS else f"; with so few records the baseline without the model could miss {missed}"

    @property
    def control_silent(self) -> bool:
        """Whether there is a reference model, and it does not tell the sides apart."""
        return any(
            item.method == CONTROL and not _apart(item) and item.details.get("detectable", 1.0) <= SILENT
            for item in self.evidence
        )


def _apart(item: Evidence) -> bool:
    """Whether the sides differ, in whichever direction: a difference is as good for an attack turned round."""
    return item.lower is not None and item.upper is not None and not item.lower <= 0.5 <= item.upper


def quantities(candidates: Candidates, compared: int) -> int:
    """How many intervals ``baseline`` and ``compared`` differences report."""
    return 2 + (candidates.reference is not None) + compared


def baseline(candidates: Candidates, settings: Settings) -> Baseline:
    """AUC by the looks of the record, by its length in tokens, and under a model that saw neither side."""
    table = candidates.table
    scores, judged = blind_scores(candidates.records, table.member, settings.seed)
    evidence = [
        area(BLIND, scores[judged], table.member[judged], settings),
        area(LENGTH, np.diff(table.offsets), table.member, settings),
    ]
    if candidates.reference is not None:
        evidence.append(area(CONTROL, candidates.reference, table.member, settings))
    return Baseline(evidence=tuple(evidence), scores=np.where(judged, scores, np.nan))


def blind_scores(
    records: Sequence[Record], member: NDArray[np.bool_], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How member-like each record is by its looks, [records], and which half of the records may be judged by it.

    Ridge logistic regression on the other half. Cross-fitting would judge all, but with errors that hang together: at
    100 records a side its AUC of nothing varies by 0.056 where an interval takes it to vary by 0.041.
    """
    from sklearn.linear_model import LogisticRegression

    judged = halves(member, seed)
    features, known = looks(records), member[~judged]
    if not 0 < known.sum() < len(known):
        return np.zeros(len(member)), judged
    fitted = LogisticRegression(C=1 / (_RIDGE * len(known)), max_iter=_STEPS).fit(features[~judged], known)
    return np.asarray(fitted.decision_function(features), dtype=np.float64), judged


def halves(member: NDArray[np.bool_], seed: int) -> NDArray[np.bool_]:
    """A random half of the members and of the non-members, the odd one included: [records]."""
    random = np.random.default_rng(seed)
    half = np.empty(len(member), dtype=np.bool_)
    for side in (member, ~member):
        half[side] = random.permutation(int(side.sum())) % 2 == 0
    return half


def differences(
    attacks: Mapping[str, NDArray[Any]], blind: Baseline, candidates: Candidates, settings: Settings
) -> tuple[Evidence, ...]:
    """By how much each attack's AUC exceeds the blind one's, on the records that the blind one may judge."""
    judged = ~np.isnan(blind.scores)
    member = candidates.table.member[judged]
    found = []
    for name, scores in attacks.items():
        attack, looks = scores[judged], blind.scores[judged]
        compared = auc_difference(
            attack[member], attack[~member], looks[member], looks[~member], 1 - settings.confidence, least=_FEW
        )
        found.append(
            Evidence(
                method=name,
                quantity=DIFFERENCE,
                estimate=compared.difference,
                lower=compared.lower,
                upper=compared.upper,
                confidence=settings.confidence,
                interval=compared.interval,
                samples={"members": int(member.sum()), "nonmembers": int((~member).sum())},
                details={"chance": 0.0},
            )
        )
    return tuple(found)
