"""Whether the records can be told apart without the model, and by how much an attack beats that.

The blind baseline tells members from non-members by the records alone (Das et al. 2024). If it succeeds, the two files
differ by themselves, and an attack that tells them apart shows nothing about the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, Settings, auc_evidence
from audits.membership.features import record_features
from audits.statistics.paired import auc_difference
from privctl.data.records import Record
from privctl.domain.evidence import Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Methods whose evidence does not depend on the audited model.
BLIND, LENGTH, CONTROL = "blind baseline", "length baseline", "reference control"
DIFFERENCE = "AUC over the blind baseline's"
#: A control that finds nothing counts only if its detectable AUC is at most this.
CONTROL_DETECTABLE = 0.55
#: If the blind baseline's detectable AUC is larger, a verdict that an attack succeeded mentions it.
_LARGEST_DETECTABLE = 0.65
#: With fewer judged records on a side, DeLong's variance of a difference is too small too often: at 3 against 30 an
#: interval with an allowed error of 5 in 10,000 fails 185 times, at 20 against 20 still 18 times.
_FEW = 50
#: Weight of the squared coefficients, for features in unit rows; and the most steps of the optimizer.
_RIDGE, _STEPS = 1e-4, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The ``evidence`` of every baseline, and the blind one's ``scores`` [records], NaN where it was fitted."""

    evidence: tuple[Evidence, ...]
    scores: NDArray[np.float64]

    @property
    def confounded(self) -> str:
        """The baselines that tell members from non-members; empty if none does."""
        methods = [item.method for item in self.evidence if _tells_apart(item)]
        return " and ".join(methods)

    @property
    def low_power_note(self) -> str:
        """A note for verdicts if there is no baseline, or the blind one has too little power; else empty."""
        if not self.evidence:
            return "; no baseline without the model was run, so the records may differ by themselves"
        reach = next((i.details.get("detectable", 1.0) for i in self.evidence if i.method == BLIND), 1.0)
        missed = f"an AUC below {reach:.2f}" if reach < 1 else "any difference"
        return (
            ""
            if reach <= _LARGEST_DETECTABLE
            else f"; with so few records the baseline without the model could miss {missed}"
        )

    @property
    def control_finds_nothing(self) -> bool:
        """Whether there is a reference model that cannot tell the sides apart, with enough power to do so."""
        return any(
            item.method == CONTROL
            and not _tells_apart(item)
            and item.details.get("detectable", 1.0) <= CONTROL_DETECTABLE
            for item in self.evidence
        )


def _tells_apart(item: Evidence) -> bool:
    """Whether the sides differ in either direction: an attack can use an AUC below 1/2 as well as one above."""
    return item.lower is not None and item.upper is not None and not item.lower <= 0.5 <= item.upper


def quantities(candidates: Candidates, compared: int) -> int:
    """How many intervals ``baseline`` and ``compared`` differences report."""
    return 2 + (candidates.reference is not None) + compared


def baseline(candidates: Candidates, settings: Settings) -> Baseline:
    """AUC by features of the record, by its length in tokens, and under a reference model that saw neither side."""
    table = candidates.table
    scores, judged = blind_scores(candidates.records, table.member, settings.seed)
    evidence = [
        auc_evidence(BLIND, scores[judged], table.member[judged], settings),
        auc_evidence(LENGTH, np.diff(table.offsets), table.member, settings),
    ]
    if candidates.reference is not None:
        evidence.append(auc_evidence(CONTROL, candidates.reference, table.member, settings))
    return Baseline(evidence=tuple(evidence), scores=np.where(judged, scores, np.nan))


def blind_scores(
    records: Sequence[Record], member: NDArray[np.bool_], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How member-like each record is by its own features, [records], and the half of the records to evaluate it on.

    Ridge logistic regression fitted on the other half. Cross-fitting would use all records, but its errors are
    correlated: at 100 records a side, the AUC under no difference has a standard deviation of 0.056, where the interval
    assumes 0.041.
    """
    from sklearn.linear_model import LogisticRegression

    judged = halves(member, seed)
    features, labels = record_features(records), member[~judged]
    if not 0 < labels.sum() < len(labels):
        return np.zeros(len(member)), judged
    fitted = LogisticRegression(C=1 / (_RIDGE * len(labels)), max_iter=_STEPS).fit(features[~judged], labels)
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
    """By how much each attack's AUC exceeds the blind baseline's, on the records that the baseline is evaluated on."""
    judged = ~np.isnan(blind.scores)
    member = candidates.table.member[judged]
    evidence = []
    for name, scores in attacks.items():
        attack, blind_scores_judged = scores[judged], blind.scores[judged]
        compared = auc_difference(
            attack[member],
            attack[~member],
            blind_scores_judged[member],
            blind_scores_judged[~member],
            1 - settings.confidence,
            least=_FEW,
        )
        evidence.append(
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
    return tuple(evidence)
