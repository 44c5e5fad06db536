"""(n, p)-discoverable extraction over a grid of n and p, with held-out text as the control.

Hayes et al. 2024, "Measuring memorization in language models via probabilistic extraction". The rates are computed
exactly from the texts' probabilities under the sampling settings; nothing is sampled. A text is (n, p)-discoverable if
its probability is at least 1 - (1-p)^(1/n), so the points of the grid are thresholds on one score, and all are tested
together: Fisher's exact test at each threshold, times the number of distinct ones, which does not depend on the labels.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from audits.extraction.discoverable import log_success
from audits.statistics.two_rates import FISHER, detectable_share, fisher
from privctl.domain.evidence import Bound, Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUERIES = (1, 10, 100, 1000, 10_000)
PROBABILITIES = (0.1, 0.5, 0.9)
GRID = "share found by sampling beyond held-out text, over n and p"
_TEST = f"{FISHER}, times the distinct cuts"


def discoverable_counts(logp: NDArray[np.float64]) -> list[int]:
    """How many texts of log-probability ``logp`` [texts] (nats) are found at each (p, n), with n varying fastest."""
    return [int(found.sum()) for found in _found(logp)]


def points_found(logp: NDArray[np.float64]) -> NDArray[np.uint8]:
    """At how many points (p, n) each text of log-probability ``logp`` [texts] (nats) is found: the easiest ones."""
    return np.asarray(np.sum(_found(logp), axis=0), dtype=np.uint8)


def _found(logp: NDArray[np.float64]) -> list[NDArray[np.bool_]]:
    by_queries = {n: log_success(logp, n) for n in QUERIES}
    return [by_queries[n] >= np.log(p) for p, n in product(PROBABILITIES, QUERIES)]


def best_cut(train: NDArray[np.float64], heldout: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which texts of each side are found at the most significant point of the grid.

    ``train`` and ``heldout`` are log-probabilities [texts] (nats).
    """
    points = list(zip(_found(train), _found(heldout), strict=True))
    return min(points, key=lambda at: fisher(int(at[0].sum()), len(train), int(at[1].sum()), len(heldout)))


def over_grid(train: NDArray[np.float64], heldout: NDArray[np.float64] | None, level: float) -> Evidence:
    """The rates of both sides at each point, and one test at ``level`` of whether training text is found more often.

    ``train`` and ``heldout`` are log-probabilities [texts] of the compared texts. Without held-out text, there are only
    counts and no estimate.
    """
    ours = discoverable_counts(train)
    details: dict[str, float] = {"training_texts": len(train), **_named_counts("training", ours)}
    samples = {"training": len(train)}
    if heldout is not None:
        samples["held_out"] = len(heldout)
    if heldout is None or not (len(train) and len(heldout)):
        reason = "a comparison needs texts of both files"
        return Evidence(
            method="extraction", quantity=GRID, estimate=None, confidence=1 - level, samples=samples, details=details,
            reason=reason,
        )  # fmt: skip
    theirs = discoverable_counts(heldout)
    pairs = list(zip(ours, theirs, strict=True))
    cuts = {a + b for a, b in pairs} - {0, len(train) + len(heldout)}
    least = min((fisher(a, len(train), b, len(heldout)) for a, b in pairs if a + b in cuts), default=1.0)
    p_value = min(1.0, max(1, len(cuts)) * least)
    # Of text that is found at the point where the fewest held-out texts are.
    reach = detectable_share(len(train), len(heldout), level / max(1, len(cuts)), min(theirs))
    return Evidence(
        method="extraction",
        quantity=GRID,
        estimate=max(a / len(train) - b / len(heldout) for a, b in pairs),
        confidence=1 - level,
        bound=Bound.NONE,
        interval=_TEST,
        samples=samples,
        details={
            **details,
            "held_out_texts": len(heldout),
            **_named_counts("held out", theirs),
            "cuts": len(cuts),
            "p_value": p_value,
            "level": level,
            "detected": float(p_value <= level),
            "chance": 0.0,
            **({} if reach is None else {"detectable": reach}),
        },
    )


def _named_counts(side: str, counts: list[int]) -> dict[str, float]:
    """Counts keyed by their names in reports, such as "training p=0.5 n=100"."""
    points = product(PROBABILITIES, QUERIES)
    return {f"{side} p={p:g} n={n}": count for (p, n), count in zip(points, counts, strict=True)}
