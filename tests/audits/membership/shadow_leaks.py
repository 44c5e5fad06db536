"""Made-up scores under shadow models, in which one way to read them finds a leak that others miss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.attack import Candidates, Shadows
from audits.membership.shadows import coins
from tests.bench.null_scores import log_sigmoid, one_token_each

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """How records differ: their difficulty, what they ``gain`` by being trained on, and a model's ``noise`` on each.

    ``uneven_gain`` and ``uneven_noise`` are deviations of the logarithm. ``failing`` is the share of records that a
    model misjudges by up to 60 nats. Without ``online`` no shadow model was trained on the records.
    """

    models: int
    gain: float
    uneven_gain: float = 0.0
    uneven_noise: float = 0.0
    failing: float = 0.0
    difficulty: float = 3.0
    online: bool = True


#: Attack -> the records on which it is the best.
LEAKS: dict[str, Records] = {
    "lira": Records(models=64, gain=0.3, uneven_noise=1.5, online=False),
    "lira-online": Records(models=64, gain=0.15, uneven_gain=1.2),
    "rmia": Records(models=4, gain=0.9, failing=0.2, difficulty=2.0, online=False),
    "rmia-online": Records(models=16, gain=0.7, failing=0.1),
}


def of_shadows(records: Records, seed: int, count: int) -> Candidates:
    """``count`` records of which half are members, and what the target and its shadow models say of them."""
    source = np.random.default_rng([seed, records.models])
    difficulty = records.difficulty * source.normal(size=count)
    gain = records.gain * np.exp(records.uneven_gain * source.normal(size=count))
    spread = 0.5 * np.exp(records.uneven_noise * source.normal(size=count))
    member = source.permutation(count) < count // 2
    included = np.stack([coins(seed, i, count) for i in range(records.models)]) & records.online

    def log_likelihoods(trained_on: NDArray[np.bool_]) -> NDArray[np.float64]:
        usual = spread * source.normal(size=trained_on.shape)
        fails = source.random(trained_on.shape) < records.failing
        return log_sigmoid(difficulty + gain * trained_on + np.where(fails, -60 * source.random(fails.shape), usual))

    found = one_token_each(log_likelihoods(member), member)
    return replace(found, shadows=Shadows(lp=log_likelihoods(included), included=included))
