"""Tests of whether training made secrets easier to identify, each with its own null hypothesis.

For canaries, whose values were drawn like their candidates, ranks under any model that does not know the values are
uniform, and independent but for what their candidates share; Fisher's method applies, with Brown's correction (1975).
If the plan left secrets out, the choice is treated as random within their kind, and a permutation test is valid for any
dependence of the outcomes. Secrets of held-out records are compared in the same way, within those of the same kind and
number of records: if each record, or all records of a secret together, were assigned to a side at random, a secret that
is on one side only is equally likely to be any of these. With only a base model, each secret that exactly one of the
two models identifies is equally likely to be identified by either, and McNemar's exact test applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import bdtrc

from audits.canaries.exposure import fisher
from audits.secrets.attack import Ranks, SecretAttackResult
from audits.secrets.beam import BeamHits, tail

if TYPE_CHECKING:
    from numpy.typing import NDArray

DESIGNED, CONTROLLED, PAIRED = "drawn at random", "against those never drawn", "against the base model"
HELD_OUT = "against held-out secrets"
_METHODS = {
    DESIGNED: "Fisher's method",
    CONTROLLED: "permutation test within kinds",
    HELD_OUT: "permutation test within kinds and numbers of records",
    PAIRED: "McNemar's exact test, as for independent secrets",
}
POISSON_BINOMIAL = "Poisson binomial tail, summed exactly"
#: The number of permutations drawn; the p-value is at least 1 / (permutations + 1).
_DRAWS = 9999
#: The most values that are shuffled at a time.
_AT_ONCE = 1 << 16
#: With fewer secrets on a side, there is no test.
FEWEST = 5
#: The share of canaries that must tell as much with candidates of their own for hits of a beam to count as independent.
_OWN = 0.85
#: The numbers of trained secrets and of others, the excess, and its p-value.
_Outcome = tuple[tuple[int, int], float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTest:
    """One test: ``name`` says what is compared, ``score`` by which score, ``compared`` the numbers of secrets.

    ``excess`` is in mean bits; for ``PAIRED`` it is the additional fraction of secrets ranked first, and with
    ``of_shares`` that of secrets in a beam. ``least`` is the p-value if every secret ranked first or were in the beam,
    None if that was not computed: among two candidates, Fisher's method never rejects. ``effective`` is the number of
    canaries with candidates of their own that tell as much as these, None for other tests.
    """

    name: str
    score: str
    compared: tuple[int, int]
    excess: float
    p_value: float
    of_shares: bool = False
    least: float | None = None
    effective: float | None = None

    @property
    def method(self) -> str:
        """The statistical test."""
        return POISSON_BINOMIAL if self.of_shares and self.name == DESIGNED else _METHODS[self.name]


def trace_tests(result: SecretAttackResult, seed: int) -> list[TraceTest]:
    """Every test with enough secrets. The base model is used only if there is no better control."""
    tests: list[TraceTest] = []
    natural = ~result.designed
    for score, ranks in ranks_by_score(result):
        trained_canaries = result.designed & result.trained
        if trained_canaries.any():
            of_canaries = ranks.select(trained_canaries)
            excess = _mean(of_canaries.bits) - _by_chance(of_canaries)
            sharing = _sharing(result.pools[trained_canaries])
            tests.append(
                TraceTest(
                    name=DESIGNED,
                    score=score,
                    compared=(len(of_canaries.bits), 0),
                    excess=excess,
                    p_value=fisher([(of_canaries.bits[some], pool) for some, pool in sharing]),
                    least=fisher([(np.log2(of_canaries.count[some]), pool) for some, pool in sharing]),
                    effective=_effective(sharing),
                )
            )
        for name, outcome in _against_controls(result, ranks.bits, seed):
            sizes, excess, p_value = outcome
            tests.append(TraceTest(name=name, score=score, compared=sizes, excess=excess, p_value=p_value))
    if result.beam is not None:
        tests += _beam_tests(result, result.beam, seed)
    chosen = natural & result.trained
    if result.before is not None and chosen.sum() >= FEWEST and not any(t.name == CONTROLLED for t in tests):
        tests.append(
            _mcnemar_test(
                result.after.ranks.select(chosen).ranked_first, result.before.ranks.select(chosen).ranked_first
            )
        )
    return tests


def _sharing(pools: NDArray[np.int64]) -> list[tuple[NDArray[np.bool_], int]]:
    """The canaries [canaries] whose candidates were drawn from as many values, and this number.

    The candidates of one are drawn from the same values as those of the next. Of few values, they are largely the same,
    and the ranks are correlated as those of canaries that share these values as references (``exposure.fisher``).
    """
    return [(pools == pool, pool) for pool in np.unique(pools).tolist()]


def _effective(sharing: Sequence[tuple[NDArray[np.bool_], int]]) -> float:
    sizes = [(int(some.sum()), pool) for some, pool in sharing]
    count = sum(size for size, _ in sizes)
    return count**2 / sum(size * (1 + (size - 1) / pool) for size, pool in sizes)


def _against_controls(
    result: SecretAttackResult, values: NDArray[np.float64], seed: int
) -> Iterator[tuple[str, _Outcome]]:
    """The permutation tests of ``values`` [secrets] for which there are enough secrets."""
    drawn = ~result.designed & ~result.held_out
    outcome = _permutation_test(values[drawn], result.control[drawn], result.kinds[drawn], seed)
    if outcome is not None:
        yield CONTROLLED, outcome
    compared, alike = compared_with_held_out(result)
    outcome = _permutation_test(values[compared], result.held_out[compared], alike[compared], seed)
    if outcome is not None:
        yield HELD_OUT, outcome


def compared_with_held_out(result: SecretAttackResult) -> tuple[NDArray[np.bool_], NDArray[np.str_]]:
    """Which secrets, including held-out ones, are compared, and the stratum of each, within which it is compared."""
    targets = [problem.target for problem in result.problems]
    compared = np.array([target.compared for target in targets], dtype=np.bool_) & ~result.designed
    alike = np.array([f"{target.records} {target.kind}" for target in targets], dtype=np.str_)
    return compared, alike


def _beam_tests(result: SecretAttackResult, hits: BeamHits, seed: int) -> Iterator[TraceTest]:
    """Whether a beam contains true values more often than fresh draws of them, or than values never drawn.

    Where the candidates are largely the same values, hits are not independent, and there is no test of fresh draws.
    """
    canaries = result.designed & result.trained
    if canaries.any() and _effective(_sharing(result.pools[canaries])) >= _OWN * canaries.sum():
        hit_count, chances = int(hits.found[canaries].sum()), hits.chance[canaries]
        yield TraceTest(
            name=DESIGNED,
            score=hits.name,
            compared=(int(canaries.sum()), 0),
            excess=float(hit_count / len(chances) - chances.mean()),
            p_value=tail(hit_count, chances.tolist()),
            of_shares=True,
            least=tail(len(chances), chances.tolist()),
        )
    for name, outcome in _against_controls(result, hits.found - hits.chance, seed):
        sizes, excess, p_value = outcome
        yield TraceTest(name=name, score=hits.name, compared=sizes, excess=excess, p_value=p_value, of_shares=True)


def ranks_by_score(result: SecretAttackResult) -> Iterator[tuple[str, Ranks]]:
    """Every available ranking, with the name of its score."""
    yield "loss", result.after.ranks
    if result.calibrated is not None:
        yield "loss less the base model's", result.calibrated


def _permutation_test(
    bits: NDArray[np.float64], control: NDArray[np.bool_], kinds: NDArray[np.str_], seed: int
) -> _Outcome | None:
    """The mean bits of trained secrets minus the control's, kinds weighted by n m / (n + m), and the p-value."""
    strata = []
    for kind in np.unique(kinds):
        inside = kinds == kind
        of_control = control[inside]
        if of_control.any() and not of_control.all():
            strata.append((bits[inside], of_control))
    sizes = (
        sum(int((~of_control).sum()) for _, of_control in strata),
        sum(int(of_control.sum()) for _, of_control in strata),
    )
    if min(sizes) < FEWEST:
        return None
    random = np.random.default_rng(seed)
    weights = np.array([c.sum() * (~c).sum() / len(c) for _, c in strata])
    null_gaps = np.zeros(_DRAWS)
    observed_gap = 0.0
    for (values, of_control), weight in zip(strata, weights / weights.sum(), strict=True):
        size = int(of_control.sum())
        sums = np.concatenate([[values[of_control].sum()], _shuffled_sums(random, values, size)])
        gaps = weight * _gap(sums, values, size)
        observed_gap += float(gaps[0])
        null_gaps += gaps[1:]
    return sizes, observed_gap, float((1 + (null_gaps >= observed_gap - 1e-12).sum()) / (1 + _DRAWS))


def _shuffled_sums(random: np.random.Generator, values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The sums of ``size`` values each drawn without replacement, [``_DRAWS``], as many at once as memory allows."""
    at_once = max(1, _AT_ONCE // len(values))
    sums = []
    for start in range(0, _DRAWS, at_once):
        rows = np.tile(values, (min(at_once, _DRAWS - start), 1))
        sums.append(random.permuted(rows, axis=1, out=rows)[:, :size].sum(axis=1))
    return np.concatenate(sums)


def _gap(control: NDArray[np.float64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The mean of the other values minus that of ``size`` values, which sum to ``control``, for each of many sums."""
    return np.asarray((values.sum() - control) / (len(values) - size) - control / size)


def _mcnemar_test(after: NDArray[np.bool_], before: NDArray[np.bool_]) -> TraceTest:
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return TraceTest(
        name=PAIRED,
        score="loss",
        compared=(len(after), len(before)),
        excess=(gained - lost) / len(after),
        p_value=float(bdtrc(gained - 1, gained + lost, 0.5)) if gained else 1.0,
    )


def _by_chance(ranks: Ranks) -> float:
    """The mean bits of uniform ranks."""
    return _mean(np.array([float(np.mean(np.log2(n) - np.log2(np.arange(1, n + 1)))) for n in ranks.count]))


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean())
