"""What goes into the joint test of all attacks: no statistic may know the labels, or relabelling proves nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audits import ATTACKS, load_attack
from audits.membership import quantile, rmia
from audits.membership.attack import Candidates, ScoreAttack, Settings
from audits.membership.joint_test import with_joint_test
from audits.membership.midpoint import split_midpoint
from tests.audits.membership.test_null import judged_together, nothing_to_find
from tests.few import few
from tests.remembered import FEW_TREES

SETTINGS = Settings(confidence=0.999)


@pytest.fixture(scope="module")
def candidates() -> Candidates:
    return nothing_to_find(4, 160)


def with_others_as_members(candidates: Candidates) -> Candidates:
    member = np.random.default_rng(9).permutation(candidates.table.member)
    return replace(candidates, table=replace(candidates.table, member=member))


def test_no_statistic_knows_the_labels(candidates: Candidates, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same labels give the same statistics, whatever the candidates' own labels are."""
    monkeypatch.setattr(quantile, "_TREES", FEW_TREES)
    other = with_others_as_members(candidates)
    labels = np.stack([candidates.table.member, other.table.member])
    for name in ATTACKS:
        attack = load_attack(name)
        first, second = (
            attack.statistics(each, SETTINGS, attack.tested(each, SETTINGS, attack.run(each, SETTINGS).scores))(labels)
            for each in (candidates, other)
        )
        assert first == pytest.approx(second), name


@pytest.mark.parametrize("attack", few([quantile.ATTACK, rmia.OFFLINE, rmia.ONLINE], 1, 2))
def test_scores_that_know_the_labels_are_replaced(attack: ScoreAttack, candidates: Candidates) -> None:
    """What the test above would find if they were not."""
    other = with_others_as_members(candidates)
    assert not np.allclose(attack.score(candidates, SETTINGS), attack.score(other, SETTINGS))
    assert attack.unlabelled is not None
    assert np.corrcoef(attack.score(candidates, SETTINGS), attack.unlabelled(candidates, SETTINGS))[0, 1] > 0.5


def test_the_midpoint_is_set_again(candidates: Candidates) -> None:
    attack, member, losses = load_attack("midpoint"), candidates.table.member, -candidates.mean_lp
    found = attack.statistics(candidates, SETTINGS, candidates.mean_lp)
    labels = np.stack([member, with_others_as_members(candidates).table.member])
    for row, value in zip(labels, found(labels)[:, 0], strict=True):
        split = split_midpoint(losses[row], losses[~row], 0)
        rates = split.true_positives / split.members, split.false_positives / split.nonmembers
        joined = (split.true_positives + split.false_positives) / (split.members + split.nonmembers)
        spread = np.sqrt(joined * (1 - joined) * (1 / split.members + 1 / split.nonmembers))
        assert value == pytest.approx((rates[0] - rates[1]) / spread)


def test_each_attack_states_the_joint_test_once(candidates: Candidates) -> None:
    attacks = [load_attack(name) for name in ("loss", "midpoint", "zlib")]
    leaking = replace(candidates, table=replace(candidates.table, lp=candidates.table.lp.copy()))
    tokens = np.repeat(candidates.table.member, np.diff(candidates.table.offsets))
    leaking.table.lp[tokens] += 1.5
    for case, leaks in ((candidates, False), (leaking, True)):
        results = {attack.name: attack.run(case, SETTINGS) for attack in attacks}
        evidence = judged_together(case, SETTINGS, attacks, results)
        plain = [item for attack in attacks for item in results[attack.name].evidence]
        assert [replace(item, test=None) for item in evidence] == plain
        tests = {item.method: item.test for item in evidence if item.test is not None}
        assert list(tests) == ["loss", "midpoint", "zlib"]
        assert {(test.compared, test.relabellings, test.level) for test in tests.values() if test} == {(3, 999, 0.05)}
        assert [test.rejects for test in tests.values() if test] == [leaks] * 3
        areas = [item for item in evidence if item.quantity == "AUC"]
        assert all(item.sees is not None and item.sees < item.details["detectable"] for item in areas)
    assert with_joint_test({}, {}, candidates.table.member, 0, 0.05) == ()
