"""Made-up scores of records, and the tests of an audit on them: the work of ``tests.bench.audit_power``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import ttest_ind

from audits.membership.attack import RATES
from audits.membership.groups import TOP, highest, weighed
from audits.statistics.fused import FusedScore
from audits.statistics.max_t import max_t, rank_statistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scores = Mapping[str, "NDArray[np.float64]"]

LEVEL, RELABELLINGS = 0.05, 199
#: The share of the variance of a record's scores that they have in common: how hard the record is.
DIFFICULTY = 0.81
#: Scores of a data set, of which half know something of membership, and of users' records, of which half do too.
SCORES, SCORES_OF_USERS = 8, 4
#: The correlation of the records of one user, and how many users a side has.
ALIKE, USERS = 0.2, 40


def judge_data_set(side: int, leak: float, seed: int) -> dict[str, bool]:
    """Which tests reject for one data set of ``side`` members and as many non-members.

    ``leak`` is by how many standard deviations members are higher in half of the scores.
    """
    source = np.random.default_rng([side, round(1000 * leak), seed])
    member = np.arange(2 * side) < side
    scores = related_scores(source, member, np.zeros(2 * side), leak, SCORES)
    fused = _fused(source, scores, side, seed, RATES)
    return {
        "t_test": _t_test(source, scores, member) <= LEVEL,
        "together": _rejects(_statistics(scores) | {"fused": fused.statistics}, member, seed),
        "fused": _rejects({"fused": _fused(source, scores, side, seed, ()).statistics}, member, seed),
    }


def judge_users(each: int, leak: float, seed: int) -> dict[str, bool]:
    """Which tests reject for ``USERS`` users a side with ``each`` records; ``leak`` as in ``judge_data_set``."""
    source = np.random.default_rng([each, round(1000 * leak), seed, USERS])
    index = np.repeat(np.arange(2 * USERS), each)
    habit = source.normal(size=2 * USERS)[index]
    member = np.arange(2 * USERS) < USERS
    scores = related_scores(source, member[index], habit, leak, SCORES_OF_USERS)
    of_users = {name: weighed(values, index) for name, values in scores.items()}
    if each > 1:
        of_users |= {name + TOP: highest(values, index) for name, values in scores.items()}
    statistics = _statistics(of_users)
    fused = _fused(source, of_users, USERS, seed, RATES)
    return {
        "records": _rejects(_statistics(scores), member[index], seed),
        "users": _rejects(statistics, member, seed),
        "with_fused": _rejects(statistics | {"fused": fused.statistics}, member, seed),
    }


def related_scores(
    source: np.random.Generator, member: NDArray[np.bool_], habit: NDArray[np.float64], leak: float, count: int
) -> dict[str, NDArray[np.float64]]:
    """``count`` scores [records] of unit variance, plus ``leak`` for members in the first half of them.

    ``habit`` [records], of unit variance or 0 everywhere, makes up ``ALIKE`` of the variance where there is one.
    """
    shared = ALIKE if habit.any() else 0.0
    difficulty = source.normal(size=len(member))
    common = math.sqrt(shared) * habit + math.sqrt((1 - shared) * DIFFICULTY) * difficulty
    own = math.sqrt((1 - shared) * (1 - DIFFICULTY))
    return {
        str(i): common + own * source.normal(size=len(member)) + (leak * member if i < count // 2 else 0.0)
        for i in range(count)
    }


def _statistics(scores: Scores) -> dict[str, Any]:
    return {name: rank_statistics(values, RATES) for name, values in scores.items()}


def _fused(
    source: np.random.Generator, scores: Scores, members: int, seed: int, rates: tuple[float, ...]
) -> FusedScore:
    digests = [source.bytes(16) for _ in range(2 * members)]
    return FusedScore(scores=scores, digests=digests, members=members, rates=rates, seed=seed)


def _rejects(statistics: Mapping[str, Any], member: NDArray[np.bool_], seed: int) -> bool:
    return min(max_t(statistics, member, seed, LEVEL, RELABELLINGS).p_values.values()) <= LEVEL


def _t_test(source: np.random.Generator, scores: Scores, member: NDArray[np.bool_]) -> float:
    """The p-value of Maini et al. (2024): a linear model of half of each side, Welch's one-sided test on the others."""
    learned = np.zeros(len(member), dtype=bool)
    for side in (member, ~member):
        places = source.permutation(np.flatnonzero(side))
        learned[places[: len(places) // 2]] = True
    features = np.stack([*scores.values(), np.ones(len(member))], axis=1)
    weights = np.linalg.lstsq(features[learned], member[learned].astype(np.float64), rcond=None)[0]
    value, judged = features @ weights, ~learned
    members, others = value[judged & member], value[judged & ~member]
    return float(ttest_ind(members, others, equal_var=False, alternative="greater").pvalue)
