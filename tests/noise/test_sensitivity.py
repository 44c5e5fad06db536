"""Sensitivities against reference values, and against trainings that were really run."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from mpmath import mpf, workdps

from privctl.domain.guarantee import Adjacency, AssumptionState
from privctl.domain.mechanism import ClippedTraining, Optimizer, Regime
from privctl.noise.dp_weights import published_shift
from privctl.noise.sensitivity import NotApplicable, WeightSensitivity, sensitivity
from verify.recompute.sensitivity import sensitivity as again

REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
PAPER = ClippedTraining(epochs=10, learning_rate=5e-5, clip_norm=1, dataset_size=1000, batch_size=5)


def value(training: ClippedTraining, regime: Regime, adjacency: Adjacency = REPLACE, dimension: int = 1) -> float:
    found = sensitivity(training, regime, adjacency, dimension)
    assert isinstance(found, WeightSensitivity), found
    return found.value


def test_convex_sensitivity_is_that_of_the_paper() -> None:
    assert value(PAPER, Regime.CONVEX) == pytest.approx(2e-4, rel=1e-14)
    assert value(PAPER, Regime.CONVEX, ZERO) == pytest.approx(1e-4, rel=1e-14)


def test_nonconvex_sensitivity_is_that_of_the_paper() -> None:
    # 2 lr C / B + 2 lr C (T - 1), attained by f(w) = -C |w|.
    assert value(PAPER, Regime.NONCONVEX) == pytest.approx(0.19992, rel=1e-12)
    assert value(PAPER, Regime.NONCONVEX, ZERO) == pytest.approx(0.19991, rel=1e-12)


@pytest.mark.parametrize(("epochs", "expected"), [(10, 0.03154598866323411), (10**6, 0.03154735060171209)])
def test_strongly_convex(epochs: int, expected: float) -> None:
    t = replace(PAPER, epochs=epochs, learning_rate=0.1, batch_size=10, strong_convexity=0.1)
    found = value(t, Regime.STRONGLY_CONVEX)
    assert found == pytest.approx(expected, rel=1e-12 + 2e-15 * epochs)
    assert found >= expected  # rounded up


def test_smooth_sensitivity_has_its_known_value() -> None:
    assert value(replace(PAPER, smoothness=1.0), Regime.SMOOTH) == pytest.approx(2.1137474802529588e-4, rel=1e-12)


def test_heavy_ball() -> None:
    t = replace(PAPER, epochs=1, dataset_size=500, optimizer=Optimizer.MOMENTUM, momentum=0.9)
    assert t.total_steps == 100
    assert value(t, Regime.NONCONVEX) == pytest.approx(0.09100023905259, rel=1e-12)


@pytest.mark.parametrize(("steps", "expected"), [(2000, 11816.414112980243), (100, 179.0927170749138)])
def test_adamw_sensitivity_has_its_known_values(steps: int, expected: float) -> None:
    t = replace(PAPER, epochs=1, dataset_size=5 * steps, optimizer=Optimizer.ADAMW)
    assert value(t, Regime.NONCONVEX, dimension=124_439_808) == pytest.approx(expected, rel=1e-11)


def test_adam_does_not_depend_on_the_clip_norm() -> None:
    t = replace(PAPER, optimizer=Optimizer.ADAM)
    assert value(t, Regime.NONCONVEX) == value(replace(t, clip_norm=1e-6), Regime.NONCONVEX)


def test_weight_decay_shrinks_the_distance() -> None:
    decayed = value(replace(PAPER, weight_decay=10.0), Regime.NONCONVEX)
    steps = np.arange(1, 2001)
    by_hand = 5e-5 * float(np.sum(np.where(steps == 1, 0.4, 2.0) * (1 - 5e-4) ** (2000 - steps)))
    assert decayed == pytest.approx(by_hand, rel=1e-10)
    assert decayed < value(PAPER, Regime.NONCONVEX)


@pytest.mark.parametrize(
    ("training", "regime", "because"),
    [
        (replace(PAPER, optimizer=Optimizer.MOMENTUM, momentum=0.9), Regime.CONVEX, "momentum"),
        (replace(PAPER, optimizer=Optimizer.ADAMW), Regime.CONVEX, "adamw"),
        (PAPER, Regime.STRONGLY_CONVEX, "not given"),
        (PAPER, Regime.SMOOTH, "not given"),
        (replace(PAPER, learning_rate=0.03, smoothness=100.0), Regime.CONVEX, "learning rate 0.03"),
        (replace(PAPER, learning_rate=0.5, strong_convexity=3.0), Regime.STRONGLY_CONVEX, "below 1"),
        (replace(PAPER, smoothness=1.0, optimizer=Optimizer.ADAM), Regime.SMOOTH, "plain SGD"),
    ],
)
def test_regimes_that_do_not_apply_say_why(training: ClippedTraining, regime: Regime, because: str) -> None:
    found = sensitivity(training, regime, REPLACE, 1)
    assert isinstance(found, NotApplicable)
    assert because in found.reason


def test_a_given_smoothness_checks_the_step_size() -> None:
    states = {}
    for t in (PAPER, replace(PAPER, smoothness=10.0)):
        found = sensitivity(t, Regime.CONVEX, REPLACE, 1)
        assert isinstance(found, WeightSensitivity)
        states[t.smoothness] = {a.name: a.state for a in found.assumptions}["step-size"]
    assert states == {None: AssumptionState.ASSERTED, 10.0: AssumptionState.CHECKED}


def loop(t: ClippedTraining, regime: Regime, adjacency: Adjacency, dimension: int) -> float:
    """The definition, step by step: every visit of every epoch for a smooth loss, each step's longest move for any."""
    change = t.clip_norm * (2 if adjacency is REPLACE else 1)
    keep, batch = 1 - t.learning_rate * t.weight_decay, t.batch_size
    if regime is Regime.SMOOTH:
        assert t.smoothness is not None
        smoothness = t.smoothness

        def move(d: float, visited: bool) -> float:
            growth = min(smoothness * d, 2 * t.clip_norm)
            growth = (batch - 1) / batch * growth + change / batch if visited else growth
            return keep * d + t.learning_rate * growth

        distance = 0.0
        for epoch in range(t.epochs):
            count = t.total_steps * (epoch + 1) // t.epochs - t.total_steps * epoch // t.epochs
            ends = []
            for visit in range(count):
                d = distance
                for step in range(count):
                    d = move(d, step == visit)
                ends.append(d)
            distance = max(ends)
        return distance
    distance, series = 0.0, 0.0
    for step in range(1, t.total_steps + 1):
        if t.optimizer is Optimizer.SGD:
            length = change / batch if step == 1 else 2 * t.clip_norm
        elif t.optimizer is Optimizer.MOMENTUM:
            length = 2 * t.clip_norm * (1 - t.momentum**step) / (1 - t.momentum)
        else:
            series += (t.beta1**2 / t.beta2) ** (step - 1)
            second = (1 - t.beta2**step) / (1 - t.beta2)
            length = 2 * math.sqrt(dimension * second * series) * (1 - t.beta1) / (1 - t.beta1**step)
        distance = keep * distance + t.learning_rate * length
    return distance


SHORT = ClippedTraining(epochs=7, learning_rate=0.05, clip_norm=0.5, dataset_size=23, batch_size=4)
LOOPED = {
    "never clipped": replace(SHORT, smoothness=0.01),
    "soon clipped": replace(SHORT, smoothness=3.0, epochs=12),
    "always clipped": replace(SHORT, smoothness=1e4),
    "growth beyond any float": replace(SHORT, smoothness=1e300),
    "contracting": replace(SHORT, smoothness=0.3, weight_decay=0.9, epochs=30),
    "at rest near the cut": replace(SHORT, smoothness=2.0, weight_decay=1.9, epochs=40),
    "at rest beyond the cut": replace(SHORT, smoothness=8.0, weight_decay=0.7, epochs=40),
    "one step an epoch": replace(SHORT, smoothness=1.0, batch_size=23),
    "batches of one": replace(SHORT, smoothness=1.0, batch_size=1),
    "epochs that differ": replace(SHORT, smoothness=1.0, steps=38),
    "differing, contracting": replace(SHORT, smoothness=0.3, weight_decay=0.9, steps=40),
}


@pytest.mark.parametrize("adjacency", [REPLACE, ZERO])
@pytest.mark.parametrize("training", LOOPED.values(), ids=LOOPED.keys())
def test_a_smooth_loss_gives_what_following_every_visit_gives(training: ClippedTraining, adjacency: Adjacency) -> None:
    expected = loop(training, Regime.SMOOTH, adjacency, 1)
    found = value(training, Regime.SMOOTH, adjacency)
    assert found >= expected
    assert found == pytest.approx(expected, rel=1e-11)
    assert again(training, Regime.SMOOTH, adjacency, 1) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"optimizer": Optimizer.MOMENTUM, "momentum": 0.9},
        {"optimizer": Optimizer.MOMENTUM, "momentum": 0.2},
        {"optimizer": Optimizer.ADAMW},
        {"optimizer": Optimizer.ADAMW, "beta2": 0.5},
        {"optimizer": Optimizer.ADAMW, "beta1": 0.0},
        {"optimizer": Optimizer.ADAMW, "beta1": 0.5, "beta2": 0.25},
        {"optimizer": Optimizer.ADAMW, "beta1": 0.6, "beta2": 0.3},
    ],
)
def test_any_loss_gives_what_adding_up_every_step_gives(more: dict[str, float], decay: float) -> None:
    training = replace(SHORT, epochs=60, weight_decay=decay, **more)
    expected = loop(training, Regime.NONCONVEX, REPLACE, 9)
    found = value(training, Regime.NONCONVEX, dimension=9)
    assert found >= expected
    assert found == pytest.approx(expected, rel=1e-11)
    assert again(training, Regime.NONCONVEX, REPLACE, 9) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("epochs", [2_000_000, 10**12])
def test_long_trainings_by_exact_arithmetic(epochs: int) -> None:
    """Where no gradient is clipped, an epoch is one affine map: its power, to 60 digits."""
    training = replace(SHORT, epochs=epochs, learning_rate=0.01, smoothness=0.02 / epochs)
    rate, smoothness, steps = (mpf(x) for x in (training.learning_rate, training.smoothness, 6))
    with workdps(60):
        grown = (1 + rate * smoothness) ** (steps - 1)
        factor = grown * (1 + rate * smoothness * 3 / 4)
        exact = rate * mpf(0.5) * 2 / 4 * grown * (factor**epochs - 1) / (factor - 1)
    assert exact * smoothness < 1, "below the cut"
    found = value(training, Regime.SMOOTH)
    checked = again(training, Regime.SMOOTH, REPLACE, 1)
    assert checked == pytest.approx(found, rel=3e-9)
    assert found >= exact
    assert found == pytest.approx(float(exact), rel=3e-9)
    assert checked == pytest.approx(float(exact), rel=1e-13)
    full = 2 * 0.01 * 0.5 * (6.0 * epochs - 1) + 0.01 / 4
    assert value(training, Regime.NONCONVEX) == pytest.approx(full, rel=3e-9)


def test_many_epochs_that_differ_in_length_are_said_to_be_too_many() -> None:
    found = sensitivity(replace(SHORT, epochs=10**7, steps=6 * 10**7 - 1, smoothness=1.0), Regime.SMOOTH, REPLACE, 1)
    assert isinstance(found, NotApplicable)
    assert "epochs are followed only where all have the same number of steps" in found.reason


@pytest.mark.parametrize("beta2", [0.999, 1 - 1e-12])
def test_adams_bound_on_steps_that_are_not_added_up_is_one(beta2: float, monkeypatch: pytest.MonkeyPatch) -> None:
    training = replace(SHORT, epochs=200, optimizer=Optimizer.ADAM, beta2=beta2)
    whole = value(training, Regime.NONCONVEX)
    sensitivity.cache_clear()
    monkeypatch.setattr("privctl.noise.series.MOST_ADDED", 50)
    monkeypatch.setattr("privctl.noise.sensitivity.MOST_ADDED", 50)
    assert value(training, Regime.NONCONVEX) >= whole
    sensitivity.cache_clear()


Gradient = Callable[[float, int, bool], float]


def run_pair(
    t: ClippedTraining, gradient: Gradient, start: float = 0.0, order: Callable[[int], list[int]] | None = None
) -> float:
    """Distance after really training twice, the data sets differing in example 0.

    ``order`` gives an epoch's visiting order; as the examples stand by default, so that example 0 comes first.
    """
    weights = []
    for changed in (False, True):
        w, velocity = start, 0.0
        for epoch in range(t.epochs):
            visited = order(epoch) if order else list(range(t.dataset_size))
            for batch in range(t.steps_per_epoch):
                examples = visited[batch * t.batch_size : (batch + 1) * t.batch_size]
                raw = [gradient(w, i, changed and i == 0) for i in examples]
                mean = sum(max(-t.clip_norm, min(t.clip_norm, g)) for g in raw) / t.batch_size
                velocity = t.momentum * velocity + mean
                w -= t.learning_rate * (velocity + t.weight_decay * w)
        weights.append(w)
    return abs(weights[0] - weights[1])


SMALL = ClippedTraining(epochs=3, learning_rate=0.1, clip_norm=0.5, dataset_size=10, batch_size=5)


def test_linear_losses_attain_the_convex_bound_and_exceed_the_published_one() -> None:
    def linear(_: float, __: int, changed: bool) -> float:
        return -9.0 if changed else 9.0

    def only_first(w: float, i: int, changed: bool) -> float:
        return linear(w, i, changed) if i == 0 else 0.0

    moved = run_pair(SMALL, only_first)
    assert moved == pytest.approx(value(SMALL, Regime.CONVEX), rel=1e-12)
    assert moved > 2 * SMALL.dataset_size * published_shift(SMALL) * 0.999  # the paper is 2N times too small


def test_a_repelling_loss_attains_the_nonconvex_bound() -> None:
    def repelling(w: float, i: int, changed: bool) -> float:
        if i == 0 and w == 0:
            return 9.0 if changed else -9.0
        return -math.copysign(9.0, w) if w else 0.0

    # At w = 0 only example 0 pulls; afterwards all push outwards at full length.
    assert run_pair(SMALL, repelling) == pytest.approx(value(SMALL, Regime.NONCONVEX), rel=1e-12)


def test_momentum_can_exceed_the_convex_formula_but_not_the_nonconvex_bound() -> None:
    t = replace(SMALL, optimizer=Optimizer.MOMENTUM, momentum=0.9)

    def only_first(_: float, i: int, changed: bool) -> float:
        return 0.0 if i else (-9.0 if changed else 9.0)

    moved = run_pair(t, only_first)
    assert moved > value(SMALL, Regime.CONVEX)  # refusing the convex regime under momentum is not pedantry
    assert moved <= value(t, Regime.NONCONVEX)


def test_a_late_visit_does_most_harm_under_strong_weight_decay() -> None:
    # One visit, at the last step: nothing after it decays the difference away.
    t = ClippedTraining(
        epochs=1, learning_rate=0.1, clip_norm=1, dataset_size=100, batch_size=1, weight_decay=1.0, smoothness=0.1
    )

    def only_first(_: float, i: int, changed: bool) -> float:
        return 0.0 if i else (-9.0 if changed else 9.0)

    moved = run_pair(t, only_first, order=lambda _: [*range(1, 100), 0])
    assert moved == pytest.approx(0.2, rel=1e-12)
    assert value(t, Regime.SMOOTH) >= moved * (1 - 1e-12)


def test_clipping_breaks_contraction_so_the_strongly_convex_bound_assumes_that_none_happens() -> None:
    t = ClippedTraining(
        epochs=10, learning_rate=0.1, clip_norm=1, dataset_size=10, batch_size=1, strong_convexity=1.0, smoothness=1.0
    )

    def far(w: float, i: int, changed: bool) -> float:
        return w - (-1000.0 if i == 0 and changed else 1000.0)

    assert run_pair(t, far) > value(t, Regime.STRONGLY_CONVEX)  # every gradient is clipped here
    found = sensitivity(t, Regime.STRONGLY_CONVEX, REPLACE, 1)
    assert isinstance(found, WeightSensitivity)
    assert "clipping-inactive" in {a.name for a in found.assumptions}
    mild = replace(t, clip_norm=3000.0)
    assert run_pair(mild, far) <= value(mild, Regime.STRONGLY_CONVEX)


def test_adam_with_betas_that_overflow_has_no_bound() -> None:
    t = replace(PAPER, epochs=50, optimizer=Optimizer.ADAM, beta1=0.999, beta2=0.9)
    assert value(t, Regime.NONCONVEX) == math.inf


@pytest.mark.parametrize("seed", range(20))
def test_random_smooth_trainings_stay_within_their_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0.5, 4, SMALL.dataset_size), rng.uniform(0, 6, SMALL.dataset_size)

    def wavy(w: float, i: int, changed: bool) -> float:
        return float(np.sin(a[i] * w + b[i] + 3 * changed)) / 2  # Lipschitz with a[i] / 2

    decay = float(rng.choice([0.0, 0.5, 5.0]))
    t = replace(SMALL, smoothness=float(a.max()) / 2, weight_decay=decay)
    moved = run_pair(t, wavy, order=lambda epoch: np.random.default_rng((seed, epoch)).permutation(10).tolist())
    assert moved <= value(t, Regime.SMOOTH) * (1 + 1e-12)
    assert value(t, Regime.SMOOTH) <= value(t, Regime.NONCONVEX)
