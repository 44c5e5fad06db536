"""Whether the records of the secrets can be distinguished from the held-out ones without the model.

Held-out secrets are a control only if their records were drawn like the training data. As in a membership audit, a
cross-fitted classifier uses the records alone, and its permutation test has an uncorrected level: a false alarm only
means that the model must distinguish the sides better than the records do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from audits.membership.baseline import GUARD, blind_scores
from audits.secrets.attack import SecretAttackResult
from audits.secrets.trace import compared_with_held_out, ranks_by_score
from audits.statistics.metrics import RELABELLED
from audits.statistics.paired import auc_difference
from audits.statistics.relabel import areas, data_seed, joint_p_value, relabellings
from privctl.data.records import Record
from privctl.domain.evidence import Bound, Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

BASELINE, APART = "secret baseline", "area without the model"
#: With fewer records per side, the classifier learns nothing.
FEWEST = 20


def without_the_model(result: SecretAttackResult, alpha: float) -> tuple[Evidence, ...]:
    """The AUC of the records without the model, and by how much each score's AUC exceeds it; all at ``alpha``.

    The first counts each record once, the others each secret once, with values centred among secrets of the same kind
    and number of records. Empty if no held-out secret is compared.
    """
    compared, alike = compared_with_held_out(result)
    places = np.flatnonzero(compared)
    held_out = result.held_out[places]
    if held_out.all() or not held_out.any():
        return ()
    texts = [result.problems[i].target.passages[0].text for i in places]
    names = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    where = np.array([names[text] for text in texts])
    trained = np.zeros(len(names), dtype=np.bool_)
    trained[where[~held_out]] = True
    records = [Record(line=number + 1, text=text) for text, number in names.items()]
    scores = [*_values_by_score(result, places, alike[places])]
    level = alpha / (1 + len(scores))
    reach = -float(ndtri(level / 2))
    if min(int(trained.sum()), int((~trained).sum())) < FEWEST:
        return (_too_few_records(records, trained, level),)
    labels = relabellings(trained, data_seed([record.digest for record in records]))
    blind = blind_scores(records, labels)
    found = areas(blind, labels)
    lengths = np.abs(areas(np.array([float(len(text)) for text in names]), labels) - 0.5)
    p_value, deviation = joint_p_value([found, lengths]), float(found[1:].std())
    samples = {"trained": int(trained.sum()), "held_out": int((~trained).sum())}
    evidence = [
        Evidence(
            method=BASELINE,
            quantity=APART,
            estimate=float(found[0]),
            lower=max(0.0, float(found[0]) - reach * deviation) if deviation else 0.0,
            upper=min(1.0, float(found[0]) + reach * deviation) if deviation else 1.0,
            confidence=1 - level,
            interval=RELABELLED,
            samples=samples,
            details={"chance": 0.5, "deviation": deviation, "p_value": p_value, "level": GUARD},
        )
    ]
    of_secrets, by_secrets = labels[:, where], areas(blind[:, where], labels[:, where])
    for name, values in scores:
        difference = auc_difference(
            values[~held_out], values[held_out], blind[0, where][~held_out], blind[0, where][held_out], level
        )
        spread = float(np.nanstd((areas(values, of_secrets) - by_secrets)[1:]))
        stderr = float(np.nanmax([spread, difference.stderr]))
        evidence.append(
            Evidence(
                method=BASELINE,
                quantity=over_the_records(name),
                estimate=difference.difference,
                lower=max(-1.0, difference.difference - reach * stderr) if stderr else -1.0,
                upper=min(1.0, difference.difference + reach * stderr) if stderr else 1.0,
                confidence=1 - level,
                interval=RELABELLED,
                samples={"secrets": int((~held_out).sum()), "compared_with": int(held_out.sum())},
                details={"chance": 0.0, "deviation": stderr},
            )
        )
    return tuple(evidence)


def _too_few_records(records: list[Record], trained: NDArray[np.bool_], level: float) -> Evidence:
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
    result: SecretAttackResult, places: NDArray[np.int64], alike: NDArray[np.str_]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name, ranks in ranks_by_score(result):
        yield name, _centred(ranks.bits[places], alike)
    if result.beam is not None:
        yield result.beam.name, _centred((result.beam.found - result.beam.chance)[places], alike)


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
    own = evidence[0]
    if own.estimate is None or own.lower is None or own.upper is None:
        return f"whether both files' records differ without the model is not known: {own.reason}"
    if not own.lower <= 0.5 <= own.upper:
        return f"the records of both files differ without the model (AUC {own.estimate:.3f})"
    beyond = next(item for item in evidence if item.quantity == over_the_records(score))
    if own.details["p_value"] <= GUARD and not (beyond.lower is not None and beyond.lower > 0):
        return (
            f"the records of both files may differ without the model (p {own.details['p_value']:.2g}, and {GUARD:g} is "
            "enough to doubt), and the model is not certain to tell more"
        )
    return ""
