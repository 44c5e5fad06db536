"""Whether the records of the secrets can be distinguished from the held-out ones without the model.

Held-out secrets are a control only if their records were drawn like the training data. As in a membership audit, a
cross-fitted classifier uses the records alone, and its permutation test has an uncorrected level: a false alarm only
means that the model must distinguish the sides better than the records do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.baseline import GUARD, blind_scores
from audits.secrets.attack import SecretAttackResult
from audits.secrets.trace import compared_with_held_out, ranks_by_score
from audits.statistics.fitted import RELABELLED, WIDENED, NullLaw, interval, widened
from audits.statistics.laws import mean_ranks
from audits.statistics.paired import auc_difference
from audits.statistics.relabel import areas, data_seed, joint_p_value, relabellings
from privctl.data.records import Record
from privctl.domain.evidence import Bound, Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

BASELINE, APART = "secret baseline", "area without the model"
#: With fewer records per side, the classifier learns nothing.
FEWEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsAlone:
    """What the records tell without the model, and the ``arrays`` from which that can be computed again.

    By name: the ``record`` [secrets] of each secret, -1 if it is not compared, and the ``records_score`` [secrets] of
    that record; under the true labels and each relabelling, the AUC by the classifier (``records_area``) and that by
    length less 1/2 (``lengths_area``), and by how much each score's AUC exceeds that of the records.
    """

    evidence: tuple[Evidence, ...] = ()
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


NOT_LOOKED_AT = RecordsAlone()


def without_the_model(result: SecretAttackResult, alpha: float) -> RecordsAlone:
    """The AUC of the records without the model, and by how much each score's AUC exceeds it; all at ``alpha``.

    The first counts each record once, the others each secret once, with values centred among secrets of the same kind
    and number of records. Empty if no held-out secret is compared.
    """
    compared, alike = compared_with_held_out(result)
    indices = np.flatnonzero(compared)
    held_out = result.held_out[indices]
    if held_out.all() or not held_out.any():
        return NOT_LOOKED_AT
    texts = [result.problems[i].target.passages[0].text for i in indices]
    names = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    where = np.array([names[text] for text in texts])
    trained = np.zeros(len(names), dtype=np.bool_)
    trained[where[~held_out]] = True
    record = np.full(len(compared), -1, dtype=np.int64)
    record[indices] = where
    kept: dict[str, NDArray[Any]] = {"record": record}
    records = [Record(line=number + 1, text=text) for text, number in names.items()]
    scores = [*_values_by_score(result, indices, alike[indices])]
    level = alpha / (1 + len(scores))
    if min(int(trained.sum()), int((~trained).sum())) < FEWEST:
        return RecordsAlone(evidence=(_too_few_records(trained, level),), arrays=kept)
    labels = relabellings(trained, data_seed([record.digest for record in records]))
    blind = blind_scores(records, labels)
    blind_areas = areas(blind, labels)
    lengths = np.abs(areas(np.array([float(len(text)) for text in names]), labels) - 0.5)
    of_records = np.full(len(compared), np.nan)
    of_records[indices] = mean_ranks(blind[0])[where]
    kept |= {"records_score": of_records, "records_area": blind_areas, "lengths_area": lengths}
    p_value, law = joint_p_value([blind_areas, lengths]), NullLaw.of(blind_areas[1:], 0.5)
    apart = widened(blind[0], trained, law.deviation)
    lower, upper = interval(float(blind_areas[0]), apart, 1 - level, law)
    samples = {"trained": int(trained.sum()), "held_out": int((~trained).sum())}
    evidence = [
        Evidence(
            method=BASELINE,
            quantity=APART,
            estimate=float(blind_areas[0]),
            lower=lower,
            upper=upper,
            confidence=1 - level,
            interval=WIDENED,
            samples=samples,
            details={**law.details, "stderr": apart, "p_value": p_value, "level": GUARD},
        )
    ]
    of_secrets, by_secrets = labels[:, where], areas(blind[:, where], labels[:, where])
    for number, (name, values) in enumerate(scores):
        difference, paired = auc_difference(
            values[~held_out], values[held_out], blind[0, where][~held_out], blind[0, where][held_out]
        )
        beyond = areas(values, of_secrets) - by_secrets
        kept[f"beyond_records.{number}"] = beyond
        law = NullLaw.of(beyond[1:], 0.0)
        stderr = float(np.nanmax([law.deviation, paired]))
        lower, upper = interval(difference, stderr, 1 - level, law)
        evidence.append(
            Evidence(
                method=BASELINE,
                quantity=over_the_records(name),
                estimate=difference,
                lower=lower,
                upper=upper,
                confidence=1 - level,
                interval=RELABELLED,
                samples={"secrets": int((~held_out).sum()), "compared_with": int(held_out.sum())},
                details={**law.details, "stderr": stderr},
            )
        )
    return RecordsAlone(evidence=tuple(evidence), arrays=kept)


def _too_few_records(trained: NDArray[np.bool_], level: float) -> Evidence:
    return Evidence(
        method=BASELINE,
        quantity=APART,
        estimate=None,
        confidence=1 - level,
        bound=Bound.NONE,
        samples={"trained": int(trained.sum()), "held_out": int((~trained).sum())},
        details={},
        reason=f"with fewer than {FEWEST} different records on a side nothing can be learned",
    )


def _values_by_score(
    result: SecretAttackResult, indices: NDArray[np.int64], alike: NDArray[np.str_]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name, ranks in ranks_by_score(result):
        yield name, _centred(ranks.bits[indices], alike)
    if result.beam is not None:
        yield result.beam.name, _centred((result.beam.found - result.beam.chance)[indices], alike)


def _centred(values: NDArray[np.float64], alike: NDArray[np.str_]) -> NDArray[np.float64]:
    _, group = np.unique(alike, return_inverse=True)
    return np.asarray(values - (np.bincount(group, values) / np.bincount(group))[group])


def over_the_records(score: str) -> str:
    """The name of the excess of the AUC by ``score`` over that without the model."""
    return f"area by {score} over that"


def doubt(evidence: tuple[Evidence, ...], score: str) -> str:
    """Why the comparison with held-out secrets by ``score`` shows nothing about the model; empty if it does."""
    if not evidence:
        return ""
    test = evidence[0]
    if test.estimate is None or test.lower is None or test.upper is None:
        return f"whether both files' records differ without the model is not known: {test.reason}"
    if not test.lower <= 0.5 <= test.upper:
        return f"the records of both files differ without the model (AUC {test.estimate:.3f})"
    beyond = next(item for item in evidence if item.quantity == over_the_records(score))
    if test.details["p_value"] <= GUARD and not (beyond.lower is not None and beyond.lower > 0):
        return (
            f"the records of both files may differ without the model (p {test.details['p_value']:.2g}, and {GUARD:g} "
            "is enough to doubt), and the model is not certain to tell more"
        )
    return ""
