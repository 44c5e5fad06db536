"""The made-up scores of the bench ``audit-power`` are as the pages say, and its tests find what is plain."""

from __future__ import annotations

import numpy as np

from tests.bench import simulated_scores
from tests.bench.audit_power import rejected
from tests.bench.simulated_scores import judge_data_set, judge_users


def test_users_resemble_themselves_and_members_are_higher_in_half_of_the_scores() -> None:
    source, users, each = np.random.default_rng(1), 2000, 10
    habit = np.repeat(source.normal(size=users), each)
    member = np.arange(users * each) < users * each // 2
    scores = simulated_scores.related_scores(source, member, habit, 0.5, 4)
    gaps = [values[member].mean() - values[~member].mean() for values in scores.values()]
    assert np.allclose(gaps, [0.5, 0.5, 0.0, 0.0], atol=0.07)
    nothing = scores["3"].reshape(users, each)
    assert abs(nothing.var() - 1) < 0.03
    assert abs(np.corrcoef(nothing[:, 0], nothing[:, 1])[0, 1] - simulated_scores.ALIKE) < 0.07
    alone = simulated_scores.related_scores(source, member, np.zeros(len(member)), 0.0, 2)
    assert abs(np.corrcoef(*alone.values())[0, 1] - simulated_scores.DIFFICULTY) < 0.02


def test_a_plain_trace_is_found_by_every_test() -> None:
    assert rejected(judge_data_set, 100, 0.8, 1) == {"t_test": 1, "together": 1, "fused": 1}
    assert rejected(judge_users, 4, 0.8, 1) == {"records": 1, "users": 1, "with_fused": 1}


def test_nothing_is_seldom_found() -> None:
    found = rejected(judge_data_set, 100, 0.0, 4)
    assert max(found.values()) < 4
