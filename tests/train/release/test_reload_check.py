"""How far the answers of a reloaded model may be from those of the trained one."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from privctl.train.release.reload_check import TOLERANCE, _differences, answers, distance, rounding_error

INPUTS = {"pixels": torch.randn(2, 8, generator=torch.Generator().manual_seed(3))}


class Hidden(nn.Module):
    """Two layers, of whose many large activations little is left in the answers where they ``cancel``."""

    def __init__(self, *, cancel: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Linear(8, 4096), nn.Linear(4096, 2)
        if cancel:
            with torch.no_grad():
                self.first.bias.fill_(2000.0)
                self.second.weight[:, ::2] = -self.second.weight[:, 1::2]

    def forward(self, pixels: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.second(self.first(pixels)))

    def in_other_order(self) -> Hidden:
        """The same function, whose sums are taken in another order."""
        other = copy.deepcopy(self)
        order = torch.randperm(4096, generator=torch.Generator().manual_seed(7))
        with torch.no_grad():
            other.first.weight.copy_(self.first.weight[order])
            other.first.bias.copy_(self.first.bias[order])
            other.second.weight.copy_(self.second.weight[:, order])
        return other


@pytest.mark.parametrize("cancel", [False, True])
def test_rounding_alone_is_allowed_and_one_changed_weight_is_not(cancel: bool) -> None:
    network = Hidden(cancel=cancel)
    expected = answers(network, INPUTS)
    allowed = max(TOLERANCE, rounding_error(network, INPUTS, expected))
    far = distance(answers(network.in_other_order(), INPUTS), expected)
    assert (far > TOLERANCE) is cancel, "only where much cancels does the order of a sum show so far up"
    assert far < allowed < 0.05
    with torch.no_grad():
        weight = network.first.bias if cancel else network.second.bias
        weight.view(-1)[weight.abs().argmax()] *= 1.01
    assert distance(answers(network, INPUTS), expected) > allowed


def test_trying_out_rounding_leaves_the_network_as_it_was() -> None:
    network = Hidden(cancel=True)
    expected = answers(network, INPUTS)
    assert rounding_error(network, INPUTS, expected) == rounding_error(network, INPUTS, expected) > TOLERANCE
    assert torch.equal(answers(network, INPUTS), expected)


def test_no_state_for_later_tokens_is_kept() -> None:
    """Hybrid networks without attention, such as tiny ones of Jamba, fail at keeping it."""

    class Keeping(Hidden):
        config = SimpleNamespace(use_cache=True)

        def forward(self, pixels: Tensor) -> SimpleNamespace:
            assert not self.config.use_cache
            return super().forward(pixels)

    network = Keeping(cancel=False)
    answers(network, INPUTS)
    assert network.config.use_cache, "it is what was given, for the configuration that is saved"


class Configured(nn.Module):
    """A layer with a constant that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self.config = SimpleNamespace(to_dict=lambda: {"down": self.down})
        self.down = [1]


def test_another_constant_weight_or_setting_is_another_network() -> None:
    network = Configured()
    assert list(_differences(copy.deepcopy(network), network, {})) == []
    for name, named in (("scale", "scale"), ("layer", "layer.weight")):
        other = copy.deepcopy(network)
        with torch.no_grad():
            (other.scale if name == "scale" else other.layer.weight).add_(1.0)
        assert list(_differences(other, network, {})) == [f"transformers loads another {named} than the network has"]
    trained = Configured()
    trained.load_state_dict(network.state_dict())
    trained.down = [1, 2]
    assert list(_differences(network, trained, {})) == ["its config.json has down [1], and the network [1, 2]"]
    assert list(_differences(network, trained, {"down": [1, 2]})) == [], "what was added to the configuration written"
    assert "makes a Configured of it" in next(_differences(network, nn.Linear(1, 1), {}))
