"""Adaptive clipping: what two releases cost together, the noise of both, the quantile reached, rounding, resuming."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from privctl.accounting.ledger import epsilon_bound
from privctl.domain.events import Ledger, SampledGaussian
from privctl.randomness import NoiseSource
from privctl.train.clipping.factors import LARGEST_NORM, ROUNDING_MARGIN, ROUNDING_MARGIN_REDUCED, Clipping
from privctl.train.settings.adaptive_clipping import AdaptiveClipping, default_count_stddev, sum_noise_multiplier
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.clip_norm import AdaptiveClipNorm
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.loop import Trainer
from privctl.train.steps.sampling import Passes, PoissonBatches
from tests.train.steps.test_loop import DIMENSION, ROWS, recipe, trainer, weight
from verify.settings.clip_norms import StatedNorms, count_noise, norms_disagree

SETTINGS = AdaptiveClipping(quantile=0.5, learning_rate=0.2, count_stddev=2.0)


def norm(**changes: Any) -> AdaptiveClipNorm:
    usual: dict[str, Any] = {"initial": 1.0, "noise_multiplier": 1.0, "batch_size": 20.0}
    return AdaptiveClipNorm(SETTINGS, **{**usual, **changes})


def adaptive(batch: float, rate: float, steps: int, **changes: Any) -> Any:
    usual = {"method": "dp-sgd", "steps": steps, "batch_size": batch, "sample_rate": rate, "noise_multiplier": 1.0}
    return recipe(**{**usual, "adaptive": SETTINGS, "learning_rate": 1e-12, **changes})


@pytest.mark.parametrize(("noise", "count"), [(1.0, 5.0), (0.5, 0.3), (3.7, 2.0), (1e-3, 40.0)])
def test_the_noise_on_the_sum_leaves_room_for_the_count(noise: float, count: float) -> None:
    with mpmath.workdps(50):
        z, s = mpmath.mpf(noise), mpmath.mpf(count)
        expected = 1 / mpmath.sqrt(1 / z**2 - 1 / (2 * s) ** 2)
    assert sum_noise_multiplier(noise, count) == pytest.approx(float(expected), rel=1e-12)


def test_a_count_that_exceeds_the_budget_alone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unclipped_count_stddev is 0.5; with a noise multiplier of 1 it must"):
        sum_noise_multiplier(1.0, 0.5)
    for noise, batch in ((1.0, 8), (20.0, 64), (0.5, 4096)):
        on_count = default_count_stddev(noise, batch)
        assert sum_noise_multiplier(noise, on_count) <= 1.034 * noise
        assert on_count >= batch / 20


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps"), [(0.1, 50), pytest.param(0.01, 1000, marks=pytest.mark.slow)])
def test_dp_accounting_composes_both_releases_to_the_ledgers_epsilon(rate: float, steps: int) -> None:
    """Their Renyi accountant composes two Gaussians on one Poisson batch; their other one has the single Gaussian."""
    peer = pytest.importorskip("dp_accounting")
    from dp_accounting import pld, rdp

    def epsilon(accountant: Any, *noises: float) -> float:
        each = [peer.GaussianDpEvent(noise) for noise in noises]
        step = each[0] if len(each) == 1 else peer.ComposedDpEvent(each)
        accountant.compose(peer.SelfComposedDpEvent(peer.PoissonSampledDpEvent(rate, step), steps))
        return float(accountant.get_epsilon(1e-5))

    count = 1.6
    on_sum = sum_noise_multiplier(1.0, count)
    both = epsilon(rdp.RdpAccountant(), on_sum, 2 * count)
    assert both == pytest.approx(epsilon(rdp.RdpAccountant(), 1.0), rel=1e-9)
    assert both > 1.01 * epsilon(rdp.RdpAccountant(), on_sum)  # the count is not for nothing
    ours = epsilon_bound(Ledger(events=(SampledGaussian(noise_multiplier=1.0, sample_rate=rate, steps=steps),)), 1e-5)
    assert ours == pytest.approx(epsilon(pld.PLDAccountant(), 1.0), rel=2e-3)


@pytest.mark.parametrize("reduced", [False, True])
def test_rounding_moves_the_count_by_no_more_than_is_left_for_it(reduced: bool) -> None:
    """Whatever the norms: a record more, and all others rounded towards the same side by what a sum may move."""
    margin = ROUNDING_MARGIN_REDUCED if reduced else ROUNDING_MARGIN
    adaptive_norm, coins = norm(initial=0.37, reduced=reduced), torch.Generator().manual_seed(3)
    worst = jumped = 0.0
    for spread in (0.0, 1e-3, 0.1, 0.6):
        for others in (1, 7, 60):
            norms = 0.37 * (1 + spread * torch.randn(others, generator=coins, dtype=torch.float64)).abs()
            moved = norms * (1 + margin / others)
            for own in (0.0, 0.37, 1e9):
                more = torch.cat([moved, torch.tensor([own], dtype=torch.float64)])
                worst = max(worst, abs(float(adaptive_norm.count_of(more) - adaptive_norm.count_of(norms))))
                jumped = max(jumped, abs(float((moved <= 0.37).sum() - (norms <= 0.37).sum())))
    assert worst <= 0.5
    assert worst > 0.9 * 0.5
    assert jumped >= 60  # a count with a jump would move by every record that lies at the clip norm


def test_the_clip_norm_stays_where_float32_measures_norms() -> None:
    adaptive_norm = norm(initial=LARGEST_NORM / 2)
    for _ in range(5):
        adaptive_norm.update(-1e14)
    assert adaptive_norm.current == LARGEST_NORM
    assert Clipping(norm=adaptive_norm.clipped_to).norm < LARGEST_NORM


class Known:
    """Noise of nothing; ``seen`` holds the standard deviation and the last number of each release, in its own unit."""

    description, cryptographic = "none, for a test", False

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        self.seen.append((stddev, float(list(tensors)[-1])))


@pytest.mark.parametrize("micro", [1, 3, 64])
@pytest.mark.parametrize("passes", [1, 2])
def test_micro_batches_and_passes_count_alike(micro: int, passes: int) -> None:
    """Norms 5, 0.22, 9 and 0.87 at clip norm 1: one lies far below, one a half of the ramp's half below it."""
    noise = Known()
    plan = adaptive(4.0, 1.0, 2, micro_examples=micro, clipping_passes=passes)
    training = trainer(ROWS, plan, Passes(4, 4, seed=0), noise=noise)
    done = training.run()
    most = 0.5 - ROUNDING_MARGIN * (1 + 1 / 8) / (2 / 8)
    places = ((1 - ROWS.double().norm(dim=1)) / 0.25).clamp(-0.5, 0.5)
    count = 2 * most * float(places.sum())
    multiplier = sum_noise_multiplier(1.0, 2.0)
    assert noise.seen[0][0] == pytest.approx(multiplier * 1.0 / 4, rel=1e-12)
    assert noise.seen[0][1] == pytest.approx(count * multiplier / 4 / 2.0, rel=1e-5)
    second = math.exp(-0.2 * (count / (2 * most * 4) + 0.5 - 0.5))
    assert done.clip_norms[:2] == pytest.approx((1.0, second), rel=1e-6)
    assert noise.seen[1][0] == pytest.approx(multiplier * second / 4, rel=1e-6)
    assert done.released == 2 * (DIMENSION + 1)
    assert "clipped_fraction" not in done.history[0]


@pytest.mark.parametrize(("quantile", "first"), [(0.3, 30.0), pytest.param(0.8, 0.01, marks=pytest.mark.slow)])
def test_the_quantile_is_reached(quantile: float, first: float) -> None:
    rows = torch.randn(400, DIMENSION, generator=torch.Generator().manual_seed(5)).double().exp().float()
    settings = AdaptiveClipping(quantile=quantile, learning_rate=0.3, count_stddev=5.0)
    plan = adaptive(100.0, 0.25, 160, clip_norm=first, adaptive=settings)
    done = trainer(rows, plan, PoissonBatches(400, 0.25, NoiseSource(2))).run()
    norms = rows.norm(dim=1).double()
    reached = [float((norms <= clip_norm).double().mean()) for clip_norm in done.clip_norms[-40:]]
    assert sum(reached) / 40 == pytest.approx(quantile, abs=0.05)
    assert abs(float((norms <= first).double().mean()) - quantile) > 0.15


def _steps(trained: Trainer) -> Tensor:
    """How far the weights moved in each step, in standard deviations of the noise on the sum: (steps, 3)."""
    trail = [weight(trained)]
    trained.advance = lambda _: trail.append(weight(trained))
    norms = torch.tensor(trained.run().clip_norms[:-1])
    stddev = trained.recipe.learning_rate * trained.recipe.sum_noise_multiplier / trained.recipe.batch_size
    return torch.stack(trail).diff(dim=0) / (norms * stddev)[:, None]


def test_the_sum_has_the_noise_of_its_own_clip_norm() -> None:
    """Of empty batches, whose count is 0: the norm falls by a third in 40 steps, and the noise with it."""
    settings = AdaptiveClipping(quantile=0.45, learning_rate=0.2, count_stddev=0.6)
    plan = adaptive(20.0, 0.25, 300, learning_rate=1.0, noise_multiplier=1.0, adaptive=settings)
    moves = _steps(trainer(ROWS, plan, _Nobody()))
    assert float(moves.std()) == pytest.approx(1.0, abs=0.12)
    assert float(moves.std()) != pytest.approx(1 / plan.sum_noise_multiplier, abs=0.12)  # that of the ledger
    for part in (moves[:100], moves[-100:]):
        assert float(part.std()) == pytest.approx(1.0, abs=0.2)


class _Nobody(PoissonBatches):
    def __init__(self) -> None:
        super().__init__(4, 0.0, NoiseSource(1))


def test_half_the_noise_on_the_count_is_noticed() -> None:
    """The path alone shows it: with the noise stated, the logarithm of the clip norm moves at least so far."""
    settings = AdaptiveClipping(quantile=0.5, learning_rate=0.2, count_stddev=3.0)
    plan = adaptive(20.0, 0.25, 120, adaptive=settings)
    norms = trainer(ROWS, plan, _Nobody()).run().clip_norms
    unit = 2 * (0.5 - ROUNDING_MARGIN * 4.5) * 20 / 0.2
    assert count_noise(norms, unit / 3.0) > 1
    assert count_noise(norms, unit / 6.0) < 1
    stated: dict[str, Any] = {
        "clip_norm": 1.0, "clipping": "flat", "noise_multiplier": 1.0, "batch_size": 20.0, "updates": 120,
        "reduced": False, "target_unclipped_quantile": 0.5, "clip_norm_learning_rate": 0.2,
        "unclipped_count_stddev": 3.0, "sum_noise_multiplier": sum_noise_multiplier(1.0, 3.0), "clip_norms": norms,
    }  # fmt: skip
    assert not list(norms_disagree(StatedNorms(**stated)))
    stated |= {"unclipped_count_stddev": 6.0, "sum_noise_multiplier": sum_noise_multiplier(1.0, 6.0)}
    (complaint,) = norms_disagree(StatedNorms(**stated))
    assert complaint.startswith("the noise reported is not in clip_norms")


def test_a_resumed_run_goes_on_from_its_clip_norm(tmp_path: Path) -> None:
    plan = adaptive(1.0, 0.25, 10)
    folder = RunFolder.begin(tmp_path / "run", {})
    first = trainer(ROWS, plan, PoissonBatches(4, 0.25, NoiseSource()), folder=folder)
    done: list[int] = []

    def stop(_: int) -> None:
        done.append(1)
        if len(done) == 6:
            raise KeyboardInterrupt

    first.advance = stop
    with folder, pytest.raises(KeyboardInterrupt):
        first.run()
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    noise = KeyedNoise(NoiseSource(9))
    second = trainer(ROWS, plan, PoissonBatches(4, 0.25, NoiseSource()), folder=folder, noise=noise)
    norms = second.run(saved).clip_norms
    assert first._adaptive is not None
    assert (saved.updates, saved.steps_begun) == (4, 6)
    assert norms[:5] == tuple(first._adaptive.norms[:5])
    assert norms[5] != first._adaptive.norms[5]
    assert len(norms) == 4 + 4 + 1
