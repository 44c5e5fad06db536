"""How far the answers of a reloaded model may be from those of the trained one."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from privctl.train.release.reload_check import TOLERANCE, answers, distance, rounding_of

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
    allowed = max(TOLERANCE, rounding_of(network, INPUTS, expected))
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
    assert rounding_of(network, INPUTS, expected) == rounding_of(network, INPUTS, expected) > TOLERANCE
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
