"""One-run lower bounds on epsilon by every theorem, on the same guesses, beside the truth.

Canaries are included by fair coins and scored by a mechanism whose epsilon is known. Each way of bounding gets the same
counts of right guesses, so that the ways differ in their theorems alone. Other projects' code is asked about the audit
with the median bound where it is installed (jax_privacy, privacy_guard); nothing of it is needed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.bench.common import publish

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: (canaries, guesses, right guesses), of each set.
Counts = Sequence[tuple[int, int, int]]
#: Counts, delta, alpha -> a lower bound on epsilon.
Way = Callable[[Counts, float, float], float]

DELTA, ALPHA = 1e-5, 0.05
SIZES = (100, 1_000, 10_000)
OURS, STEINKE, MAHLOUJIFAR = "privctl", "Steinke 2023", "Mahloujifar 2024"
BEST_SET = "best set, known afterwards"
GAUSSIAN = "Mahloujifar 2024, if Gaussian"
JAX, GUARD = "jax_privacy, own thresholds", "PrivacyGuard, if Gaussian"
#: The number of canaries above which jax_privacy's test of a Gaussian curve would take hours.
MOST_JAX_GAUSSIAN = 1_000
#: Canaries in all audits of one kind: fewer audits of many canaries.
MOST_CANARIES = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A mechanism that scores canaries: ``gaussian`` of mu ``strength``, or randomized response of that epsilon."""

    gaussian: bool
    strength: float

    def __str__(self) -> str:
        return f"{'Gaussian, mu' if self.gaussian else 'randomized response, epsilon'} {self.strength:g}"

    @property
    def truth(self) -> float:
        """The least epsilon at ``DELTA``."""
        from audits.statistics.f_dp import epsilon_of_mu

        if self.gaussian:
            return epsilon_of_mu(self.strength, DELTA)
        rate_of_members = 1 / (1 + math.exp(-self.strength))
        return math.log((rate_of_members - DELTA) / (1 - rate_of_members))

    def scores(self, source: np.random.Generator, included: NDArray[np.bool_]) -> NDArray[np.float64]:
        """A score for each canary, [canaries]; chance breaks the ties of randomized response."""
        import numpy as np

        if self.gaussian:
            return np.asarray(source.normal(size=len(included)) + self.strength * included)
        true = source.random(len(included)) < 1 / (1 + math.exp(-self.strength))
        return np.asarray((included == true) + 1e-6 * source.random(len(included)))


MECHANISMS = tuple(Scored(gaussian=kind, strength=strength) for kind in (True, False) for strength in (1.0, 2.0, 4.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The ``scores`` of canaries, which ones were ``included``, both [canaries], and what was counted."""

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]
    sets: Counts


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--draws", type=int, default=200, help="most audits of a kind")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of canaries")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    results = [measured(mechanism, canaries, options.draws) for canaries in options.sizes for mechanism in MECHANISMS]
    absent = [name for name in ("jax_privacy", "privacy_guard") if find_spec(name) is None]
    data = {"delta": DELTA, "alpha": ALPHA, "absent": absent, "results": results}
    publish("audit-bounds", ["canaries", "mechanism", "true", *WAYS], _rows(results), data, options.output)


def audit(mechanism: Scored, canaries: int, draw: int) -> Audit:
    """One audit, with the sets of guesses that privctl registers."""
    import numpy as np

    from audits.canaries.bounds import guesses_of
    from audits.canaries.design import register

    source = np.random.default_rng([canaries, int(10 * mechanism.strength), mechanism.gaussian, draw])
    included = source.random(canaries) < 0.5
    scores = mechanism.scores(source, included)
    scored, coins = np.ones(canaries, dtype=np.bool_), np.where(included, 1, -1)
    sets = [
        (canaries, group.guesses, int((guesses_of(scores, scored, group) == coins).sum()))
        for group in register([1] * canaries)
    ]
    return Audit(scores=scores, included=included, sets=sets)


def measured(mechanism: Scored, canaries: int, most: int) -> dict[str, Any]:
    """The median of each way's bounds over audits, the share of them above the truth, and other projects' bounds."""
    print(f"{canaries} canaries, {mechanism}", file=sys.stderr, flush=True)
    audits = [audit(mechanism, canaries, draw) for draw in range(max(1, min(most, MOST_CANARIES // canaries)))]
    found: dict[str, Any] = {}
    for name, variant in WAYS.items():
        bounds = [variant(audit.sets, DELTA, ALPHA) for audit in audits]
        above = sum(bound > mechanism.truth for bound in bounds) / len(bounds)
        found[name] = {"median": median(bounds), "above_truth": above}
        if name == OURS:
            middle = bounds.index(sorted(bounds)[len(bounds) // 2])
    return {
        "canaries": canaries, "mechanism": str(mechanism), "true": mechanism.truth, "audits": len(audits),
        "ways": found,
        "one_audit": {
            "counts": audits[middle].sets,
            **{name: variant(audits[middle].sets, DELTA, ALPHA) for name, variant in WAYS.items()},
            **peers(audits[middle]),
        },
    }  # fmt: skip


def _ours(sets: Counts, delta: float, alpha: float) -> float:
    from audits.statistics.several_guesses import GuessCount, epsilon_bound

    return epsilon_bound([GuessCount(canaries=m, guesses=r, correct=v) for m, r, v in sets], delta, alpha)[0]


def _gaussian(sets: Counts, delta: float, alpha: float) -> float:
    """Of the largest mu; no bound on epsilon where the mechanism's curve is another one."""
    from audits.statistics.f_dp import epsilon_of_mu
    from audits.statistics.several_guesses import GuessCount, mu_bound

    return epsilon_of_mu(mu_bound([GuessCount(canaries=m, guesses=r, correct=v) for m, r, v in sets], alpha)[0], delta)


def _best_set(sets: Counts, delta: float, alpha: float) -> float:
    """The largest bound of the sets with all of alpha each: what a choice that cost nothing would give."""
    return max(_ours([each], delta, alpha) for each in sets)


def _steinke(sets: Counts, delta: float, alpha: float) -> float:
    from audits.statistics.one_run import epsilon_bound

    return max(epsilon_bound(*each, delta, alpha / len(sets)) for each in sets)


def _mahloujifar(sets: Counts, delta: float, alpha: float) -> float:
    from audits.statistics.f_dp import epsilon_bound

    return max(epsilon_bound(*each, delta, alpha / len(sets)) for each in sets)


#: The valid ways, then one that chooses for nothing, and one that takes each mechanism to be Gaussian.
WAYS: dict[str, Way] = {
    OURS: _ours,
    STEINKE: _steinke,
    MAHLOUJIFAR: _mahloujifar,
    BEST_SET: _best_set,
    GAUSSIAN: _gaussian,
}


def peers(audit: Audit) -> dict[str, float]:
    """What other projects' code says of an ``audit``, where installed.

    Of the same counts with the same share of alpha each; of jax_privacy also by the thresholds that it chooses itself.
    PrivacyGuard asks ``scipy.stats.norm`` about one number at a time, which takes nearly all of its time; it is given
    the functions of ``scipy.special`` that this calls.
    """
    from scipy.special import ndtr, ndtri

    canaries, share = audit.sets[0][0], ALPHA / len(audit.sets)
    found: dict[str, float] = {}
    if find_spec("jax_privacy") is not None:
        auditing: Any = import_module("jax_privacy.auditing")
        scores = auditing.CanaryScoreAuditor(audit.scores[audit.included], audit.scores[~audit.included])
        found["jax_privacy"] = max(auditing._epsilon_one_run(0, *each, share, DELTA) for each in audit.sets)
        found[JAX] = float(scores.epsilon_one_run(ALPHA, DELTA))
        if canaries <= MOST_JAX_GAUSSIAN:
            gaussian = max(auditing._epsilon_one_run_fdp(0, *each, share, DELTA) for each in audit.sets)
            found["jax_privacy, if Gaussian"] = gaussian
    if find_spec("privacy_guard") is not None:
        guard: Any = import_module("privacy_guard.analysis.mia.fdp_analysis_node")
        guard.norm = SimpleNamespace(cdf=ndtr, ppf=ndtri)
        found[GUARD] = max(
            float(guard.FDPAnalysisNode(m, right, guesses, threshold=share, delta=DELTA).run_analysis().eps)
            for m, guesses, right in audit.sets
        )
    return found


def _rows(results: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Medians, with the share of bounds above the truth."""
    return [
        [
            str(each["canaries"]),
            each["mechanism"],
            f"{each['true']:.2f}",
            *(f"{variant['median']:.2f} ({100 * variant['above_truth']:.3g} %)" for variant in each["ways"].values()),
        ]
        for each in results
    ]
