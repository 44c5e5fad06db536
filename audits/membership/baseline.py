"""Whether the records can be distinguished without the model, and by how much an attack beats that.

The blind baseline distinguishes members from non-members by the records alone (Das et al. 2024). If it succeeds, the
two files differ by themselves, and an attack that distinguishes them shows nothing about the model.

It protects against false accusations, so the error that matters is missing a difference. It therefore learns from and
judges all records (cross-fitted), and its permutation test uses the level ``GUARD`` without correction. With half of
the records and the level of a corrected interval, a model that saw neither side was found to leak in 7 of 20 audits in
which 18 % of the non-members came from another source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, Settings, auc_evidence
from audits.membership.features import record_features
from audits.statistics.cross_fit import cross_fitted, folds
from audits.statistics.fitted import RELABELLED, WIDENED, NullLaw, interval, widened
from audits.statistics.paired import auc_difference
from audits.statistics.power import detectable_area_beyond
from audits.statistics.relabel import areas, data_seed, joint_p_value, relabellings
from privctl.data.records import Record
from privctl.domain.evidence import Evidence
from privctl.domain.progress import Progress, unseen

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Methods whose evidence does not depend on the audited model.
BLIND, LENGTH, CONTROL = "blind baseline", "length baseline", "reference control"
DIFFERENCE = "AUC over the blind baseline's"
#: The level of the test for a difference without the model. A false alarm only means that an attack must beat the blind
#: baseline.
GUARD = 0.2
#: A control that finds nothing counts only if its detectable AUC is at most this.
CONTROL_DETECTABLE = 0.55
#: If the blind baseline's detectable AUC is larger, a verdict that an attack succeeded mentions it.
_LARGEST_DETECTABLE = 0.65
#: The ridge penalty, for features in unit rows. A tenth of it or less halves the power to detect that one record in ten
#: comes from another source.
_RIDGE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The ``evidence`` of all baselines, and the blind baseline's ``scores`` [records].

    ``labels`` are the relabellings, the true labels first, and ``areas`` the blind baseline's AUC under each.
    ``others`` are the scores [records] of the other baselines: the length, and the reference model's.
    ``p_value`` tests that the records do not differ without the model; 1 if no baseline was run.
    """

    evidence: tuple[Evidence, ...]
    scores: NDArray[np.float64]
    labels: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))
    areas: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    p_value: float = 1.0

    @property
    def suspected(self) -> bool:
        """Whether the records may differ without the model, so that an attack must beat the blind baseline."""
        return self.p_value <= GUARD or bool(self.confounded)

    @property
    def confounded(self) -> str:
        """The baselines whose interval shows that they distinguish members from non-members; empty if none do."""
        methods = [item.method for item in self.evidence if _separates(item)]
        return " and ".join(methods)

    @property
    def low_power_note(self) -> str:
        """A note for verdicts if no baseline was run or the blind one has too little power; otherwise empty."""
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
        """Whether a reference model cannot distinguish the sides, although it would have enough power to."""
        return any(
            item.method == CONTROL
            and not _separates(item)
            and item.details.get("detectable", 1.0) <= CONTROL_DETECTABLE
            for item in self.evidence
        )


def _separates(item: Evidence) -> bool:
    """Whether the sides differ in either direction: an attack can exploit an AUC below 1/2 as well."""
    return item.lower is not None and item.upper is not None and not item.lower <= 0.5 <= item.upper


def quantities(candidates: Candidates, compared: int) -> int:
    """The number of intervals reported by ``baseline`` and ``compared`` differences."""
    return 2 + (candidates.reference is not None) + compared


def baseline(candidates: Candidates, settings: Settings, progress: Progress = unseen) -> Baseline:
    """The AUC of the record's features, of its length in tokens, and under a reference model that saw neither side."""
    table = candidates.table
    digests = [record.digest for record in candidates.records]
    labels = relabellings(table.member, data_seed(digests))
    features = candidates.features
    if features is None:
        features = record_features(candidates.records, candidates.ngrams)
    fitted = blind_scores(candidates.records, labels, features, progress)
    blind = areas(fitted, labels)
    others: dict[str, NDArray[Any]] = {"length": np.diff(table.offsets)}
    evidence = [
        _blind_evidence(fitted[0], blind, table.member, settings),
        auc_evidence(LENGTH, others["length"], table.member, settings),
    ]
    if candidates.reference is not None:
        others["reference"] = candidates.reference
        evidence.append(auc_evidence(CONTROL, candidates.reference, table.member, settings))
    # The blind baseline learns the direction; length and reference are tested in both directions.
    p_value = joint_p_value([blind, *(np.abs(areas(each, labels) - 0.5) for each in others.values())])
    evidence[0] = replace(evidence[0], details={**evidence[0].details, "p_value": p_value, "level": GUARD})
    return Baseline(
        evidence=tuple(evidence), scores=fitted[0], labels=labels, areas=blind, others=others, p_value=p_value
    )


def blind_scores(
    records: Sequence[Record], labels: NDArray[np.bool_], features: Any = None, progress: Progress = unseen
) -> NDArray[np.float64]:
    """How member-like the records are by their ``features``, for each row of ``labels``, [rows, records].

    Each record is judged by what was learned from the other folds.
    """
    features = record_features(records) if features is None else features
    return cross_fitted(features, folds([record.digest for record in records]), labels, _RIDGE, progress)


def _blind_evidence(
    scores: NDArray[np.float64], relabelled: NDArray[np.float64], member: NDArray[np.bool_], settings: Settings
) -> Evidence:
    """The blind baseline's AUC, with the interval of ``fitted``, as its scores are not of independent records.

    The detectable AUC is that whose interval lies above 1/2, which takes more than for a score that is not fitted.
    """
    law = NullLaw.of(relabelled[1:], 0.5)
    found = auc_evidence(BLIND, scores, member, settings)
    value, stderr = float(relabelled[0]), widened(scores, member, law.deviation)
    lower, upper = interval(value, stderr, settings.confidence, law)
    least = math.nan
    if law.deviation > 0:
        reach, sizes = law.reaches((1 - settings.confidence) / 2)[0], (int(member.sum()), int((~member).sum()))
        least = detectable_area_beyond(reach, *sizes, deviation=law.deviation)
    return replace(
        found,
        estimate=value,
        lower=lower,
        upper=upper,
        interval=WIDENED,
        details={**law.details, "stderr": stderr, **({} if math.isnan(least) else {"detectable": least})},
    )


def differences(
    attacks: Mapping[str, NDArray[Any]],
    blind: Baseline,
    candidates: Candidates,
    settings: Settings,
    refitted: Mapping[str, NDArray[np.float64]] | None = None,
) -> tuple[Evidence, ...]:
    """By how much each attack's AUC exceeds the blind baseline's on the same records.

    The interval is that of ``fitted``, which accounts for the fitting of the blind baseline. The standard error is the
    larger of DeLong's for paired scores and the standard deviation over relabellings. ``refitted`` holds the AUCs under
    ``blind.labels`` of attacks that are also fitted to labels.
    """
    member = candidates.table.member
    evidence = []
    for name, scores in attacks.items():
        difference, paired = auc_difference(
            scores[member], scores[~member], blind.scores[member], blind.scores[~member]
        )
        own = None if refitted is None else refitted.get(name)
        law = NullLaw.of(((areas(scores, blind.labels) if own is None else own) - blind.areas)[1:], 0.0)
        stderr = max(law.deviation, 0.0 if math.isnan(paired) else paired)
        lower, upper = interval(difference, stderr, settings.confidence, law)
        evidence.append(
            Evidence(
                method=name,
                quantity=DIFFERENCE,
                estimate=difference,
                lower=lower,
                upper=upper,
                confidence=settings.confidence,
                interval=RELABELLED,
                samples={"members": int(member.sum()), "nonmembers": int((~member).sum())},
                details={**law.details, "stderr": stderr},
            )
        )
    return tuple(evidence)
