"""True positive rates of two scores of the same records: how far apart they are, and what of that chance explains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLES = 4000
_AT_A_TIME = 500


def rate_difference(
    first: tuple[NDArray[Any], NDArray[Any]], second: tuple[NDArray[Any], NDArray[Any]], rate: float, seed: int = 0
) -> dict[str, float]:
    """The TPR at the false positive ``rate`` of ``first`` less that of ``second``, with an interval at 95 %.

    Each holds scores of members and of non-members; entry i is the same record in both. The records of each side are
    drawn anew with replacement, the same for both scores, and the thresholds are set anew (bootstrap percentiles).
    """
    import numpy as np

    if [len(side) for side in first] != [len(side) for side in second]:
        raise ValueError("the two scores are not of the same records: their numbers differ")
    random, found = np.random.default_rng(seed), []
    for _ in range(SAMPLES // _AT_A_TIME):
        drawn = [random.integers(len(side), size=(_AT_A_TIME, len(side))) for side in first]
        one, other = (
            rates(*(side[places] for side, places in zip(score, drawn, strict=True)), rate) for score in (first, second)
        )
        found.append(one - other)
    lower, upper = np.quantile(np.concatenate(found), [0.025, 0.975]).tolist()
    here = [float(rates(members[None], others[None], rate)[0]) for members, others in (first, second)]
    return {"difference": here[0] - here[1], "lower": lower, "upper": upper}


def rates(members: NDArray[Any], others: NDArray[Any], rate: float) -> NDArray[Any]:
    """The TPR of each row, as ``audits.statistics.metrics.tpr_at_fpr`` counts it."""
    import numpy as np

    place = others.shape[1] - 1 - int(rate * others.shape[1] + 1e-9)
    threshold = np.partition(others, place, axis=1)[:, place]
    return np.asarray((members > threshold[:, None]).mean(axis=1))
