"""What the records of secrets tell without the model, computed again from what an audit kept of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.evidence import Evidence
from verify.audits.ranks.figures import won
from verify.audits.ranks.fitted import moments, widening
from verify.audits.ranks.records_alone import paired_deviation
from verify.audits.secrets.kept import BEYOND, CALIBRATED, LOSS, KeptSecrets

if TYPE_CHECKING:
    from numpy.typing import NDArray

BASELINE, APART = "secret baseline", "area without the model"
_BY, _OVER = "area by ", " over that"
#: With fewer records on a side, nothing is learned.
_FEWEST = 20
_ROUNDING = 1e-9


def baseline_again(item: Evidence, kept: KeptSecrets) -> Mapping[str, float] | None:
    """What ``item`` must state, by the names of its entries; None if what was kept does not give it."""
    if "record" not in kept:
        return None
    where, first = np.unique(kept["record"], return_index=True)
    records = kept["held_out"][first[where >= 0]]  # a record is on the side of its secret
    sides = {"trained": int((~records).sum()), "held_out": int(records.sum())}
    if item.quantity == APART:
        if min(sides.values()) < _FEWEST:
            return {**sides, "estimate": math.nan}
        if "records_area" not in kept:
            return None
        return {**sides, **_record_figures(kept, first[where >= 0], records)}
    name = item.quantity.removeprefix(_BY).removesuffix(_OVER)
    values, number = kept.values_by(name), _number(name, kept)
    beyond = f"{BEYOND}{number}"
    if values is None or beyond not in kept or "records_score" not in kept:
        return None
    return _secret_figures(values, kept, kept[beyond])


def _number(score: str, kept: KeptSecrets) -> int:
    """The position of ``score`` among those that an audit compares: by losses, then by a beam."""
    scores = [LOSS, *([CALIBRATED] if kept.ranked(CALIBRATED) is not None else [])]
    return scores.index(score) if score in scores else len(scores)


def _record_figures(kept: KeptSecrets, first: NDArray[np.int64], held_out: NDArray[np.bool_]) -> dict[str, float]:
    scores, areas, lengths = kept["records_score"][first], kept["records_area"], kept["lengths_area"]
    sides = scores[~held_out], scores[held_out]
    largest, law = np.maximum(_unit(areas), _unit(lengths)), moments(areas[1:], 0.5)
    return {
        "estimate": won(*sides),
        **law,
        "stderr": law["deviation"] * widening(*sides),
        "p_value": float(np.mean(largest >= largest[0] - _ROUNDING)),
    }


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = float(np.std(values))
    return np.asarray((values - np.mean(values)) / spread if spread > 0 else np.zeros(len(values)))


def _secret_figures(values: NDArray[np.float64], kept: KeptSecrets, beyond: NDArray[np.float64]) -> dict[str, float]:
    """The excess of the AUC, its moments over relabellings, and its standard error, DeLong's if that is larger."""
    inside = kept["record"] >= 0
    group_values, records, held_out = values[inside], kept["records_score"][inside], kept["held_out"][inside]
    strata = kept["stratum"][inside]
    centred = group_values - np.array([group_values[strata == stratum].mean() for stratum in strata.tolist()])
    excess = won(centred[~held_out], centred[held_out]) - won(records[~held_out], records[held_out])
    sides = ~held_out, held_out
    paired = paired_deviation([centred[side] for side in sides], [records[side] for side in sides])
    law = moments(beyond[1:], 0.0)
    return {
        "estimate": excess, **law, "stderr": max(law["deviation"], paired),
        "secrets": int((~held_out).sum()), "compared_with": int(held_out.sum()),
    }  # fmt: skip
