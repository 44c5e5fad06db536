"""Which layers an epoch quantizes, by every mode and budget; what they cost and what that would save."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from privctl.domain.errors import CommandError
from privctl.train.methods.dpquant.cost import multiply_adds, speedup
from privctl.train.methods.dpquant.schedule import LayerSchedule, candidates, matching
from privctl.train.methods.dpquant.settings import LayerMode
from privctl.train.settings.choices import FormatName

NAMES = tuple("abcdefgh")
COSTS = (1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 30.0)
NOTHING = (0.0,) * 8


def schedule(mode: LayerMode, **changes: Any) -> LayerSchedule:
    settings: dict[str, Any] = {
        "names": NAMES, "costs": COSTS, "mode": mode, "seed": b"seed", "fraction": 0.75, "beta": 10.0,
    }  # fmt: skip
    return LayerSchedule(**{**settings, **changes})


@pytest.mark.parametrize("mode", [LayerMode.DPQUANT, LayerMode.RANDOM])
def test_an_epoch_takes_so_many_and_not_always_the_same(mode: LayerMode) -> None:
    layer_schedule = schedule(mode)
    drawn = [layer_schedule.chosen(epoch, NOTHING) for epoch in range(20)]
    assert {len(one) for one in drawn} == {6}
    assert len(set(drawn)) > 5
    assert drawn == [schedule(mode).chosen(epoch, NOTHING) for epoch in range(20)]


def test_a_single_layer_leaves_nothing_to_choose() -> None:
    """A network of layers of a kind of its own may have only its head left."""
    with pytest.raises(CommandError, match="only 'lm_head' can be quantized of this model"):
        schedule(LayerMode.RANDOM, names=("lm_head",), costs=(1.0,))


def test_only_dpquant_heeds_scores() -> None:
    scores = (9.0, 9.0, *(0.0,) * 6)  # the first two hurt
    for epoch in range(20):
        assert schedule(LayerMode.DPQUANT).chosen(epoch, scores) == frozenset("cdefgh")
    drawn = [schedule(LayerMode.RANDOM).chosen(epoch, scores) for epoch in range(20)]
    assert drawn == [schedule(LayerMode.RANDOM).chosen(epoch, NOTHING) for epoch in range(20)]
    assert any("a" in one for one in drawn)


def test_static_choices_stay() -> None:
    layer_schedule = schedule(LayerMode.STATIC)
    assert len({layer_schedule.chosen(epoch, NOTHING) for epoch in range(20)}) == 1
    assert schedule(LayerMode.STATIC, seed=b"c").chosen(0, NOTHING) != layer_schedule.chosen(0, NOTHING)
    named = schedule(LayerMode.STATIC, static=frozenset("ah"), fraction=None)
    assert named.chosen(3, NOTHING) == frozenset("ah")
    assert schedule(LayerMode.ALL).chosen(0, NOTHING) == frozenset(NAMES)
    assert schedule(LayerMode.NONE).chosen(0, NOTHING) == frozenset()


def test_a_compute_target_takes_the_fewest_of_the_order_that_reach_it() -> None:
    layer_schedule = schedule(LayerMode.RANDOM, fraction=None, compute_target=0.6)
    dearest = max(COSTS) / sum(COSTS)
    for epoch in range(50):
        share = layer_schedule.share(layer_schedule.chosen(epoch, NOTHING))
        assert 0.6 <= share < 0.6 + dearest
    whole = schedule(LayerMode.RANDOM, fraction=None, compute_target=1.0)
    assert whole.chosen(0, NOTHING) == frozenset(NAMES)
    assert layer_schedule.chances(NOTHING) is None


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 4), (0.51, 5), (0.75, 6), (0.01, 1), (0.3 + 0.2 - 1e-12, 4)])
def test_fractions_are_rounded_up(fraction: float, count: int) -> None:
    assert schedule(LayerMode.RANDOM, fraction=fraction).count == count


def test_a_budget_for_all_leaves_nothing_to_choose() -> None:
    with pytest.raises(CommandError, match="--layers all"):
        schedule(LayerMode.DPQUANT, fraction=0.9)
    schedule(LayerMode.ALL, fraction=0.9)


def test_layers_that_stay_in_full_precision() -> None:
    assert candidates(NAMES, ["[ab]", "h"]) == tuple("cdefg")
    with pytest.raises(CommandError, match="--full-precision x matches no layer"):
        candidates(NAMES, ["x"])
    with pytest.raises(CommandError, match="no layer is left"):
        candidates(NAMES, ["*"])
    with pytest.raises(CommandError, match="--static-layers z"):
        matching(NAMES, "z", "--static-layers")


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1, stride=2, groups=2)
        self.fc = nn.Linear(8, 5)
        self.wide = Conv1D(7, 5)
        self.idle = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.wide(self.fc(self.conv(x).flatten(2).mT))
        return found


def test_multiply_adds_are_counted() -> None:
    net = Two().train()
    found = multiply_adds(net, ("conv", "fc", "wide", "idle"), lambda: net(torch.zeros(1, 4, 6, 10)))
    positions = 3 * 5
    assert found == (positions * 8 * (4 // 2 * 9), positions * 8 * 5, positions * 5 * 7, 0)
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())


def test_the_speed_model_is_amdahls_law() -> None:
    assert speedup(0.75, FormatName.LUQ_FP4) == pytest.approx(1 / (0.25 + 0.75 / 4))
    assert speedup(0.0, FormatName.FP8) == 1
    assert speedup(1.0, FormatName.FP8) == 2
