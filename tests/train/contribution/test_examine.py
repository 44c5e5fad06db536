"""The self-test on planted faults and on sound networks, by every way of finding a contribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping
from privctl.train.clipping.rerun import Mode
from privctl.train.contribution.examine import IndependenceTest, examine
from privctl.train.contribution.findings import ROUNDING, ROUNDING_QUANTIZED, DependentRecordsError
from privctl.train.contribution.probes import BatchLimits
from privctl.train.contribution.views import ClippedDerivatives, ClippedGradients, ComputationStage, LossOnly
from privctl.train.directional import Derivatives, FiredGroup, direction
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.quantized import layers as layers_module
from privctl.train.settings.choices import ClippingStyle, DerivativeMethod, FormatName
from tests.few import few
from tests.train.contribution.planted import FAULTS, SOUND, Network, task
from tests.train.quantized.test_soundness import coupled

CPU = torch.device("cpu")
LIMITS = BatchLimits(rows=8, tokens=128, length=40)


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


def gradients(network: nn.Module, style: ClippingStyle = ClippingStyle.FLAT, **more: Any) -> ComputationStage:
    return ComputationStage(
        name="float32", view=ClippedGradients(network=network, clipping=Clipping(norm=1, style=style), **more)
    )


def derivatives(network: nn.Module, method: DerivativeMethod, directions: int = 1) -> ComputationStage:
    names = [name for name, _ in network.named_parameters() if not name.startswith("layer") for _ in range(directions)]
    fired = [FiredGroup(index=i, parameters=(name,)) for i, name in enumerate(names)]
    along = [direction(b"x", 0, f.index, {n: network.get_parameter(n).shape for n in f.parameters}) for f in fired]
    return ComputationStage(
        name="float32", view=ClippedDerivatives(engine=Derivatives(network, method), fired_groups=[(fired, along)])
    )


def test_derivatives_are_as_long_as_the_gradient_along_any_number_of_directions() -> None:
    """Their mean square over directions is the gradient's, by whose length it is judged what moves them."""
    network, network_task = Network(nn.Identity()), task()
    view = derivatives(network, DerivativeMethod.BACKWARD, 256).view
    (found,) = view.contributions(lambda: network_task.losses(network, network_task.batch([0], CPU, 0)), [0], [0])
    length = float(torch.cat(list(found.parts.values())).norm())
    assert length == pytest.approx(found.size, rel=0.2), "not 16 times as long"


def run(
    network: nn.Module, *stages: ComputationStage, padding: int | None = None, limits: BatchLimits = LIMITS
) -> IndependenceTest:
    return examine(network, replace(task(), padding=padding), limits, stages, CPU)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused_by_what_it_does(fault: str) -> None:
    layer, words = FAULTS[fault]
    network = Network(layer())
    # The engine itself refuses gradients that disagree with autograd's.
    with pytest.raises(InputError if fault == "gradient only" else DependentRecordsError, match=words):
        run(network, gradients(network))


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("style", few([ClippingStyle.FLAT, ClippingStyle.PER_LAYER], 0))
def test_sound_networks_pass_and_are_left_as_they_were(name: str, style: ClippingStyle) -> None:
    network = Network(SOUND[name]()).train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    state = torch.get_rng_state()
    found = run(network, gradients(network, style))
    assert found.rows == 8
    assert 0 <= found.differences["float32"] < ROUNDING / 10
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == ([0.3] if name == "dropout" else [])
    assert all(not module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("method", [m for m in DerivativeMethod if m is not DerivativeMethod.AUTO])
@pytest.mark.parametrize("fault", ["padded length", "mean over records", "gradient only", None])
def test_derivatives_by_every_method(method: DerivativeMethod, fault: str | None) -> None:
    network = Network(nn.LayerNorm(8) if fault is None else FAULTS[fault][0]())
    stage = derivatives(network, method)
    if fault is None:
        assert run(network, stage).differences["float32"] < ROUNDING
        return
    if fault == "gradient only" and method in (DerivativeMethod.FORWARD, DerivativeMethod.DIFFERENCE):
        return  # the fault is in a backward pass, which these have not
    # Products come from the engine, which itself refuses gradients that disagree with autograd's.
    refused = fault == "gradient only" and method is DerivativeMethod.PRODUCTS
    with pytest.raises(InputError if refused else DependentRecordsError, match=FAULTS[fault][1]):
        run(network, stage)


class Borrowing(nn.Module):
    """Reads the weight of a layer that it does not call; ``in_place``, where no copies of it can be made."""

    def __init__(self, *, mixes: bool, in_place: bool) -> None:
        super().__init__()
        self.inner, self.mixes, self.in_place = nn.Linear(8, 8), mixes, in_place

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.zeros(8, 8).add_(self.inner.weight) if self.in_place else self.inner.weight
        x = x @ weight + self.inner.bias
        return x - 0.1 * x[:, :1].mean(0, keepdim=True) if self.mixes else x


@pytest.mark.parametrize("in_place", [False, True])
def test_a_layer_that_is_taken_as_a_whole_or_copied_is_tested_like_others(in_place: bool) -> None:
    network = Network(Borrowing(mixes=False, in_place=in_place))
    found = run(network, gradients(network))
    assert found.differences["float32"] < ROUNDING / 10
    mode = Mode.MAPPED if in_place else Mode.EXPANDED
    assert [(each.module, each.kind, each.mode) for each in found.promoted] == [("layer", "Borrowing", mode)]
    assert 0 < found.promoted_share < 1 if in_place else found.promoted_share == 0
    network = Network(Borrowing(mixes=True, in_place=in_place))
    with pytest.raises(InputError, match="the content of the other records|examples of a batch are mixed"):
        run(network, gradients(network))


def test_only_padding_is_cured_by_padding() -> None:
    network = Network(FAULTS["padded length"][0]())
    found = run(network, gradients(network), padding=40)
    assert found.padding == 40
    assert found.rows == 128 // 40
    for fault in ("mean over records", "experts of limited capacity", "running statistics", "number of records"):
        network = Network(FAULTS[fault][0]())
        with pytest.raises(DependentRecordsError, match="even with every text padded to 40 tokens"):
            run(network, gradients(network), padding=40)


def test_what_a_batch_leaves_behind_is_refused_without_gradients_too() -> None:
    for fault in ("running statistics", "memory"):
        with pytest.raises(DependentRecordsError, match="the batches before it"):
            run(Network(FAULTS[fault][0]()))
    assert run(Network(FAULTS["mean over records"][0]())).differences == {}


def test_a_parameter_that_a_forward_pass_writes_is_refused() -> None:
    class Drifting(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.mul_(1 + 1e-9)
            return super().forward(x)

    with pytest.raises(DependentRecordsError, match=r"wrote into the weights .*changes the parameter 'layer.weight'"):
        run(Network(Drifting(8)))


def test_a_table_that_grows_is_no_fault_unless_it_is_saved() -> None:
    class Growing(nn.Module):
        def __init__(self, saved: bool) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(1), persistent=saved)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.table) < x.shape[1]:
                self.table = torch.ones(x.shape[1])
            return x * self.table[: x.shape[1], None]

    network = Network(Growing(saved=False))
    run(network, gradients(network))
    assert len(network.layer.table) == 1
    with pytest.raises(DependentRecordsError, match=r"buffer 'layer.table'"):
        run(Network(Growing(saved=True)))


#: Nearest rounding of floats by a common power of two is that by any other.
_COUPLED = [(name, planted) for name in FormatName for planted in (False, True) if not (planted and name == "fp8")]
_QUICK = [place for place, (name, _) in enumerate(_COUPLED) if name in ("luq-fp4", "fp8", "int4")]


@pytest.mark.parametrize(
    ("name", "planted"),
    few(_COUPLED, *_QUICK),
)
def test_layers_in_few_bits(name: FormatName, planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    layers = QuantizedLayers(network=network, format=FORMATS[name], seed=b"x")

    def around(keys: Any) -> Any:
        layers.choose(frozenset(layers.names))
        layers.begin(7)
        return layers.active(keys)

    stages = {
        "gradients": replace(gradients(network, around=around, rounds=True), rounding=ROUNDING_QUANTIZED),
        "losses": ComputationStage(
            name="losses", view=LossOnly(network=network, around=around), rounding=ROUNDING_QUANTIZED
        ),
    }
    if planted:
        monkeypatch.setattr(layers_module, "_by_example", coupled)
    for stage in stages.values():
        if planted and stage.name == "float32":
            with pytest.raises(DependentRecordsError):
                run(network, stage)
        elif not planted:
            assert run(network, stage).differences[stage.name] < 0.02
    layers.choose(frozenset())


def test_one_record_at_a_time_needs_no_comparison() -> None:
    network = Network(FAULTS["mean over records"][0]())
    assert run(network, gradients(network), limits=BatchLimits(rows=1, tokens=128, length=40)).rows == 1


def test_the_refusal_names_the_module() -> None:
    network = Network(FAULTS["mean over records"][0]())
    with pytest.raises(DependentRecordsError, match=r"first in module 'layer' \(Function\)"):
        run(network, gradients(network))
