"""Private loops whose network or losses keep something of a batch for the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.domain.errors import InputError
from privctl.integrations.carried_state import CarriedState

_CARRIED = "losses change when rows of the batch before are replaced"
_mean = 0.0


class _Network(nn.Module):
    """A layer over inputs less ``shift``, which a subclass takes from earlier batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def shift(self, inputs: Tensor) -> Any:
        return 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs - self.shift(inputs))
        return outputs


class _RunningMean(_Network):
    mean = torch.zeros(5)

    def shift(self, inputs: Tensor) -> Tensor:
        before, self.mean = self.mean, 0.9 * self.mean + 0.1 * inputs.mean(0)
        return before


class _WrittenInPlace(_Network):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5), persistent=False)

    def shift(self, inputs: Tensor) -> Tensor:
        before = self.mean.clone()
        self.mean.mul_(0.9).add_(0.1 * inputs.mean(0))
        return before


class _OfTheFirstBatch(_Network):
    """As in initialization by data: what the first batch sets stays."""

    mean: Tensor | None = None

    def shift(self, inputs: Tensor) -> Tensor:
        before = self.mean
        self.mean = inputs.mean(0) if before is None else before
        return torch.zeros(5) if before is None else before


class _Queue(_Network):
    def __init__(self) -> None:
        super().__init__()
        self.latest: deque[float] = deque([0.0], maxlen=3)

    def shift(self, inputs: Tensor) -> float:
        before = sum(self.latest)
        self.latest.append(float(inputs.mean()))
        return before


class _LatestOutput(_Network):
    """Honest: it keeps its latest inputs and counts its calls, of which nothing is computed."""

    calls = 0

    def shift(self, inputs: Tensor) -> float:
        self.calls, self.inputs = self.calls + 1, inputs
        return 0.01 * self.calls


def _train(network: nn.Module, losses: Callable[[Tensor, Tensor], Tensor] | None = None) -> int:
    """Make nine private steps, and return how many."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(60, 5), torch.randint(0, 3, (60,)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    private = privctl.make_private(network, optimizer, DataLoader(data, batch_size=20), noise_multiplier=1.0)

    def usual(inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(network(inputs), labels, reduction="none")

    compute = losses or usual
    for _ in range(3):
        for inputs, labels in private.loader:
            private.backward(partial(compute, inputs, labels))
            optimizer.step()
    return private.steps_begun


@pytest.mark.parametrize("kind", [_RunningMean, _WrittenInPlace, _OfTheFirstBatch, _Queue])
def test_planted_a_network_that_carries_batches_over_ends_the_training(kind: type[_Network]) -> None:
    with pytest.raises(InputError, match=_CARRIED):
        _train(kind())


class _Trainer:
    """A loop in a class, which keeps the mean loss and, if ``weighs``, weighs losses by it."""

    def __init__(self, *, weighs: bool) -> None:
        self.network, self.weighs, self.mean, self.history = _Network(), weighs, 0.0, list[float]()

    def losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        each = functional.cross_entropy(self.network(inputs), labels, reduction="none")
        weight = 1 + self.mean if self.weighs else 1.0
        self.mean = 0.9 * self.mean + 0.1 * float(each.mean())
        self.history.append(self.mean)
        return each * weight


def _of_a_closure(network: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    mean = 0.0

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        nonlocal mean
        each = functional.cross_entropy(network(inputs), labels, reduction="none")
        before, mean = mean, float(each.mean())
        return each * (1 + before)

    return losses


def _of_a_global(network: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        global _mean
        each = functional.cross_entropy(network(inputs), labels, reduction="none")
        before, _mean = _mean, float(each.mean())
        return each * (1 + before)

    return losses


@pytest.mark.parametrize("made", [_of_a_closure, _of_a_global])
def test_planted_losses_that_are_weighed_by_earlier_ones_end_the_training(made: Callable[[nn.Module], Any]) -> None:
    network = _Network()
    with pytest.raises(InputError, match=_CARRIED):
        _train(network, made(network))


def test_planted_a_loop_in_a_class_that_carries_batches_over_ends_the_training() -> None:
    trainer = _Trainer(weighs=True)
    with pytest.raises(InputError, match=_CARRIED):
        _train(trainer.network, trainer.losses)


def test_what_is_kept_but_not_computed_from_is_not_refused() -> None:
    network = _LatestOutput()
    assert _train(network) == 9
    trainer = _Trainer(weighs=False)
    assert _train(trainer.network, trainer.losses) == 9
    # The first step is also compared with autograd, but the tests' own calls leave nothing.
    assert len(trainer.history) == network.calls == 9


def test_all_that_is_carried_is_put_back() -> None:
    network, trainer = _WrittenInPlace(), _Trainer(weighs=False)
    known, inner = {"list": [1, 2]}, torch.zeros(2)
    kept = known["list"]

    def function() -> None:
        known["list"].append(3)
        known["other"] = [4]
        inner.add_(1)
        trainer.mean, network.extra = 5.0, 6  # type: ignore[assignment]
        network(torch.ones(2, 5))

    state = CarriedState(function, network)
    function()
    assert (trainer.mean, kept, float(inner[0])) == (5.0, [1, 2, 3], 1.0)
    state.restore()
    assert known == {"list": [1, 2]}
    assert known["list"] is kept
    assert (trainer.mean, inner.tolist(), network.mean.tolist()) == (0.0, [0, 0], [0] * 5)
    assert not hasattr(network, "extra")
