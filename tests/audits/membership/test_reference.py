"""The reference attack: logits beside a reference model, log-probabilities beside shadow models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logit

from audits.membership import lira, reference
from audits.membership.attack import Candidates, Settings, Shadows
from audits.membership.groups import weighed
from audits.statistics.metrics import auc
from privctl.data.columns import HeadKind
from tests.audits.membership.test_attacks import table


def scored(lp: list[float], usual: list[float], head: HeadKind | None = None) -> np.ndarray:
    """The scores of records with these mean log-probabilities, beside the reference model's."""
    two = table(np.array(lp[:1]), np.array(lp[1:]))
    return reference.ATTACK.score(replace(two, reference=np.array(usual), shadows=None, head=head), Settings())


@pytest.mark.parametrize("head", [None, HeadKind.ONE, HeadKind.SEVERAL, HeadKind.TOKENS, HeadKind.SPAN])
def test_it_is_a_difference_of_logits(head: HeadKind | None) -> None:
    """scipy's logit of numpy's probabilities, and numbers of 30 digits."""
    lp, usual = [-1.0, -2.0, -0.03, -40.0], [-1.5, -2.5, -7.0, -41.0]
    found = scored(lp, usual, head)
    assert found == pytest.approx(logit(np.exp(lp)) - logit(np.exp(usual)), rel=1e-5)
    assert found[:2] == pytest.approx([0.706192686461628, 0.559762974126821], rel=1e-12)
    assert found[0] > found[1], "equal differences of log-probabilities, of which the likelier record tells more"


def test_a_number_has_no_probability() -> None:
    assert scored([-1.0, -2.0], [-1.25, -2.5], HeadKind.NUMBER) == pytest.approx([0.25, 0.5])


@pytest.mark.parametrize(("head", "nearest"), [(None, -1e-6), (HeadKind.ONE, -1e-12)])
def test_certainty_is_bounded(head: HeadKind | None, nearest: float) -> None:
    """A mean of 0, or rounded above it, is as good as one at the bound; what is impossible stays finite."""
    surest = -float(np.log(-nearest))
    records = table(np.array([-1.0]), np.array([-1.0, -1.0, -1.0]))
    usual = np.array([0.0, 1e-7, nearest, -1e4])
    found = reference.ATTACK.score(replace(records, reference=usual, head=head), Settings())
    assert found[:3] == pytest.approx(np.full(3, logit(np.exp(-1.0)) - surest), rel=1e-6)
    assert found[3] == pytest.approx(1e4 + logit(np.exp(-1.0)))


def test_certain_records_do_not_decide_for_their_groups() -> None:
    """Of groups of five whose members know a little; a tenth of the records is certain to either model."""
    source = np.random.default_rng(0)
    phi = source.normal(size=600)
    lp, usual = (-np.logaddexp(0, -each) for each in (phi + 1.0 * (np.arange(600) < 300), phi))
    candidates = replace(table(lp[:300], lp[300:]), reference=usual)
    sure = source.random(600) < 0.1
    candidates = replace(candidates, reference=np.where(sure, 0.0, usual))
    means = weighed(reference.ATTACK.score(candidates, Settings()), np.arange(600) // 5)
    assert np.isfinite(means).all()
    assert 0.6 < auc(means[:60], means[60:]).value < 0.9


def area(candidates: Candidates) -> float:
    scores, member = reference.ATTACK.score(candidates, Settings()), candidates.table.member
    return auc(scores[member], scores[~member]).value


def test_a_shift_of_log_odds_is_found_better_by_logits() -> None:
    """Members have log-odds above the reference model's by as much at every difficulty, as a classifier's gain is."""
    source = np.random.default_rng(1)
    difficulty, member = source.normal(0, 2, 1200), np.arange(1200) < 600
    phi = difficulty + 0.5 * member + 0.5 * source.normal(size=1200)
    lp, usual = (-np.logaddexp(0, -each) for each in (phi, difficulty))
    candidates = replace(table(lp[member], lp[~member]), reference=usual, head=HeadKind.ONE)
    by_means = lp - usual
    assert area(candidates) > auc(by_means[member], by_means[~member]).value + 0.02
    assert area(candidates) == pytest.approx(0.76, abs=0.05)  # normal scores a deviation apart


def test_shadow_models_take_the_place_of_a_reference_model() -> None:
    lp = np.array([[-1.5, -1.0], [-2.0, -1.0], [-2.5, -1.0], [-3.0, -1.0]])
    shadows = Shadows(lp=lp, included=np.array([[True, False], [False, True]] * 2))
    two = replace(table(np.array([-1.0]), np.array([-2.0])), reference=None, shadows=shadows)
    assert reference.ATTACK.score(two, Settings()) == pytest.approx([1.25, -1])
    unreferenced = replace(two, reference=np.array([-1.5, -2.5]))
    assert reference.ATTACK.score(unreferenced, Settings()) == pytest.approx([0.706193, 0.559763], abs=1e-6)


def test_logits_beside_few_shadow_models_would_repeat_lira() -> None:
    """Why log-probabilities are compared with those: the difference of logits orders records as ``lira-online``."""
    source = np.random.default_rng(2)
    difficulty = source.normal(0, 2, 200)
    included = np.arange(4)[:, None] % 2 == source.integers(2, size=200)
    lp = -np.logaddexp(0, -(difficulty + included + 0.5 * source.normal(size=(4, 200))))
    target = -np.logaddexp(0, -(difficulty + 0.5 * source.normal(size=200)))
    shadows = Shadows(lp=lp, included=included)
    candidates = replace(table(target[:100], target[100:]), reference=None, shadows=shadows)
    online = lira.online_scores(candidates.mean_lp, shadows)
    of_logits = lira.confidence(candidates.mean_lp) - lira.confidence(lp).mean(axis=0)
    assert np.corrcoef(online, of_logits)[0, 1] > 1 - 1e-9
    assert np.corrcoef(online, reference.ATTACK.score(candidates, Settings()))[0, 1] < 0.99
