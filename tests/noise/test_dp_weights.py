"""DP-Weights: the published formula's numbers, and what really follows (docs/papers.md#dp-weights)."""

from dataclasses import replace

import pytest

from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState, Guarantee, Scope, Status
from privctl.domain.mechanism import Calibration, ClippedTraining, Formula, Optimizer, Regime
from privctl.noise.dp_weights import (
    PUBLISHED,
    Premises,
    PrivacyTarget,
    default_delta,
    guarantees,
    noise_stddev,
    published_stddev,
)

PAPER = ClippedTraining(epochs=10, learning_rate=5e-5, clip_norm=1, dataset_size=1000, batch_size=5)
DELTA = 1e-6
ENFORCED = Premises(assumptions=(Assumption(name="f", statement="", state=AssumptionState.ENFORCED),))
ASSERTED = Premises(assumptions=(Assumption(name="f", statement="", state=AssumptionState.ASSERTED),))
VIOLATED = Premises(assumptions=(Assumption(name="f", statement="", state=AssumptionState.VIOLATED),))


@pytest.mark.parametrize(
    ("epochs", "batch", "epsilon", "algorithm2", "eq1"),
    [
        (10, 5, 0.01, 0.0140316569058852, 0.119412905344449),
        (10, 5, 1, 0.00976052988025269, 0.0988069214722423),
        (10, 5, 10, 0.00815538821775197, 0.0903084492326653),
        (10, 5, 100, 0.00681450250261621, 0.0825501379836636),
        (10, 100, 1, 0.00976002649401263, 0.0987934227898856),
        (20, 5, 1, 0.00976105976050537, 0.0988211286195605),
        # the last root computed at 30 digits
        (1, 100, 1, 0.00976000264940126, 0.0987927833328634854),
    ],
)
def test_published_formula(epochs: int, batch: int, epsilon: float, algorithm2: float, eq1: float) -> None:
    t = replace(PAPER, epochs=epochs, batch_size=batch)
    assert published_stddev(t, epsilon, DELTA, Formula.ALGORITHM_2) == pytest.approx(algorithm2, rel=1e-12)
    assert published_stddev(t, epsilon, DELTA, Formula.EQUATION_1) == pytest.approx(eq1, rel=1e-12)


def under(regime: str, found: tuple[Guarantee, ...], adjacency: Adjacency = Adjacency.REPLACE_ONE) -> Guarantee:
    return next(g for g in found if g.name == regime and g.adjacency == adjacency and g.scope is Scope.THIS_MODEL)


def epsilons(epochs: int, batch: int, claim: float = 1) -> tuple[float, float, float]:
    """(convex zero-out, convex replace, nonconvex replace) at the paper's noise."""
    t = replace(PAPER, epochs=epochs, batch_size=batch)
    target = PrivacyTarget(epsilon=claim, delta=DELTA)
    found, _ = guarantees(t, target, noise_stddev(t, target, 1), 1, ASSERTED)
    values = (
        under("convex", found, Adjacency.ZERO_OUT).epsilon,
        under("convex", found).epsilon,
        under("nonconvex", found).epsilon,
    )
    assert None not in values
    return values  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("epochs", "batch", "zero_out", "replace_one"),
    [
        (1, 5, 0.00279262, 0.00600620),
        (5, 5, 0.01633187, 0.03456645),
        (10, 5, 0.03456544, 0.07282984),
        (20, 5, 0.07282560, 0.15296475),
        (1, 10, 0.00128519, 0.00279263),
        (5, 10, 0.00767161, 0.01633211),
        (10, 10, 0.01633187, 0.03456645),
        (20, 10, 0.03456544, 0.07282984),
        (1, 50, 0.00019955, 0.00045094),
        (5, 50, 0.00128519, 0.00279263),
        (10, 50, 0.00279262, 0.00600620),
        (20, 50, 0.00600616, 0.01281468),
        (1, 100, 0.00008571, 0.00019955),
        (5, 100, 0.00058354, 0.00128519),
        (10, 100, 0.00128519, 0.00279263),
        (20, 100, 0.00279262, 0.00600620),
    ],
)
def test_what_follows_when_the_loss_is_convex(epochs: int, batch: int, zero_out: float, replace_one: float) -> None:
    found = epsilons(epochs, batch)
    assert found[0] == pytest.approx(zero_out, abs=1.01e-8)
    assert found[1] == pytest.approx(replace_one, abs=1.01e-8)


@pytest.mark.parametrize(
    ("epochs", "batch", "claim", "nonconvex"),
    [
        (10, 5, 1, 306.229454833),
        (10, 5, 0.01, 168.363222082),
        (10, 100, 1, 4.96699854337),
        (20, 5, 1, 1033.11621897),
        (20, 5, 100, 2000.05660323),
        (1, 5, 1, 11.2703327539),
        (1, 100, 1, 0.364343038732),
    ],
)
def test_what_follows_when_nothing_is_known(epochs: int, batch: int, claim: float, nonconvex: float) -> None:
    assert epsilons(epochs, batch, claim)[2] == pytest.approx(nonconvex, rel=2e-7)


def test_a_convex_claim_below_the_tail_is_exceeded() -> None:
    # Claimed 0.01, convex replace-one gives 0.0493.
    assert epsilons(10, 5, 0.01)[1] == pytest.approx(0.0493205935953, rel=2e-7)


@pytest.mark.parametrize(
    ("regime", "adjacency", "batch", "stddev"),
    [
        (Regime.CONVEX, Adjacency.ZERO_OUT, 5, 4.2246788893e-4),
        (Regime.CONVEX, Adjacency.REPLACE_ONE, 5, 8.4493577787e-4),
        (Regime.NONCONVEX, Adjacency.REPLACE_ONE, 5, 0.19992 * 4.224678889326841),
        (Regime.CONVEX, Adjacency.REPLACE_ONE, 100, 4.2246788893e-5),
    ],
)
def test_gaussian_calibration(regime: Regime, adjacency: Adjacency, batch: int, stddev: float) -> None:
    t = replace(PAPER, batch_size=batch)
    target = PrivacyTarget(epsilon=1, delta=DELTA, calibration=Calibration.GAUSSIAN, regime=regime, adjacency=adjacency)
    chosen = noise_stddev(t, target, 1)
    assert chosen == pytest.approx(stddev, rel=2e-7)
    found, _ = guarantees(t, target, chosen, 1, ENFORCED)
    reached = under(regime, found, adjacency).epsilon
    assert reached is not None
    assert 0.999999999 < reached <= 1
    assert all(g.name != PUBLISHED for g in found)


def test_a_regime_that_does_not_apply_is_refused_with_its_reason() -> None:
    t = replace(PAPER, optimizer=Optimizer.MOMENTUM, momentum=0.9)
    target = PrivacyTarget(epsilon=1, delta=DELTA, calibration=Calibration.GAUSSIAN, regime=Regime.CONVEX)
    with pytest.raises(CommandError, match="momentum"):
        noise_stddev(t, target, 1)


def test_statuses_follow_the_premises() -> None:
    target = PrivacyTarget(epsilon=1, delta=DELTA)
    statuses = {}
    for name, premises in (("enforced", ENFORCED), ("asserted", ASSERTED), ("violated", VIOLATED)):
        found, _ = guarantees(PAPER, target, 0.01, 1, premises)
        statuses[name] = {g.name: g.status for g in found}
    assert statuses["enforced"] == {
        "published": Status.CLAIMED,
        "convex": Status.CONDITIONAL,
        "nonconvex": Status.PROVED,
    }
    assert statuses["asserted"]["nonconvex"] is Status.CONDITIONAL
    assert set(statuses["violated"].values()) == {Status.VOID}


def test_regimes_left_out_are_listed_with_reasons() -> None:
    _, omitted = guarantees(PAPER, PrivacyTarget(epsilon=1, delta=DELTA), 0.01, 1, ASSERTED)
    assert [o.what.rsplit(" ", 1)[-1] for o in omitted] == ["strongly-convex", "smooth"]


def test_several_candidates_are_worth_the_least_noisy_one() -> None:
    found, _ = guarantees(
        PAPER, PrivacyTarget(epsilon=1, delta=DELTA), 0.02, 1, ASSERTED, released_stddevs=(0.01, 0.02)
    )
    together = next(g for g in found if g.name == "convex" and g.scope is Scope.ALL_CANDIDATES)
    alone, _ = guarantees(PAPER, PrivacyTarget(epsilon=1, delta=DELTA), 0.01, 1, ASSERTED)
    assert together.epsilon == pytest.approx(under("convex", alone).epsilon, rel=1e-6)
    assert together.epsilon > (under("convex", found).epsilon or 0)


def test_default_delta() -> None:
    assert default_delta(1000) == 1e-6


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-6), (-1, 1e-6), (float("nan"), 1e-6), (1, 0), (1, 1), (1, 2)])
def test_impossible_targets(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="epsilon|delta"):
        PrivacyTarget(epsilon=epsilon, delta=delta)
