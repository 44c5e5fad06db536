"""Tests of whether training made secrets easier to tell; each says what it takes for chance.

Where values were drawn by us like their candidates, ranks under any model that knows nothing of the values are
independent and uniform: Fisher's method. Where the plan left secrets out, which ones is taken for chance within their
kind: a permutation test, which holds however outcomes depend on each other. With the base model alone, each secret that
only one of the models tells is as likely told by either: McNemar's exact test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import bdtrc

from audits.canaries.exposure import fisher
from audits.secrets.attack import Ranks, SecretAttackResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

DESIGNED, CONTROLLED, PAIRED = "drawn at random", "against those never drawn", "against the base model"
_METHODS = {
    DESIGNED: "Fisher's method",
    CONTROLLED: "permutation test within kinds",
    PAIRED: "McNemar's exact test, as for independent secrets",
}
#: Permutations drawn for the test; its p-value is at least one over them.
_DRAWS = 9999
#: Fewer secrets on a side than this say nothing.
_FEWEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One test: ``name`` says what is compared, ``by`` with which score, ``compared`` how many secrets on each side.

    ``excess`` is in mean bits, or for ``PAIRED`` the share of secrets told more.
    """

    name: str
    by: str
    compared: tuple[int, int]
    excess: float
    p_value: float

    @property
    def method(self) -> str:
        """How the p-value was had."""
        return _METHODS[self.name]


def trace_tests(found: SecretAttackResult, seed: int) -> list[Test]:
    """Every test there are secrets for. The base model serves where there is no better control."""
    tests: list[Test] = []
    natural = ~found.designed
    for by, ranks in scores(found):
        drawn = found.designed & ~found.control
        if drawn.any():
            bits = ranks.of(drawn).bits
            p_value = fisher([(bits, None)])
            tests.append(
                Test(
                    name=DESIGNED, by=by, compared=(len(bits), 0), excess=_mean(bits) - _by_chance(ranks.of(drawn)),
                    p_value=p_value,
                )
            )  # fmt: skip
        made = _permuted(ranks.bits[natural], found.control[natural], found.kinds[natural], seed)
        if made is not None:
            sizes, excess, p_value = made
            tests.append(Test(name=CONTROLLED, by=by, compared=sizes, excess=excess, p_value=p_value))
    chosen = natural & ~found.control
    if found.before is not None and chosen.sum() >= _FEWEST and not any(t.name == CONTROLLED for t in tests):
        tests.append(_paired(found.after.ranks.of(chosen).told, found.before.ranks.of(chosen).told))
    return tests


def scores(found: SecretAttackResult) -> Iterator[tuple[str, Ranks]]:
    """Every way of ranking there is, with its name."""
    yield "loss", found.after.ranks
    if found.calibrated is not None:
        yield "loss less the base model's", found.calibrated


def _permuted(
    bits: NDArray[np.float64], control: NDArray[np.bool_], kinds: NDArray[np.str_], seed: int
) -> tuple[tuple[int, int], float, float] | None:
    """Mean bits of trained secrets beyond those of the control, kinds weighted by n m / (n + m), and its p-value."""
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
    if min(sizes) < _FEWEST:
        return None
    random = np.random.default_rng(seed)
    weights = np.array([c.sum() * (~c).sum() / len(c) for _, c in strata])
    drawn = np.zeros(_DRAWS)
    seen = 0.0
    for (values, of_control), weight in zip(strata, weights / weights.sum(), strict=True):
        size = int(of_control.sum())
        sums = np.array([values[of_control].sum(), *(random.permutation(values)[:size].sum() for _ in range(_DRAWS))])
        gaps = weight * _gap(sums, values, size)
        seen += float(gaps[0])
        drawn += gaps[1:]
    return sizes, seen, float((1 + (drawn >= seen - 1e-12).sum()) / (1 + _DRAWS))


def _gap(control: NDArray[np.float64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The mean of the others less that of ``size`` values, which sum to ``control``, for each of many sums."""
    return np.asarray((values.sum() - control) / (len(values) - size) - control / size)


def _paired(after: NDArray[np.bool_], before: NDArray[np.bool_]) -> Test:
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return Test(
        name=PAIRED,
        by="loss",
        compared=(len(after), len(before)),
        excess=(gained - lost) / len(after),
        p_value=float(bdtrc(gained - 1, gained + lost, 0.5)) if gained else 1.0,
    )


def _by_chance(ranks: Ranks) -> float:
    """The mean bits of uniform ranks."""
    return _mean(np.array([float(np.mean(np.log2(n) - np.log2(np.arange(1, n + 1)))) for n in ranks.count]))


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean())
