"""A module's own parameter: the children that it does not reach are not run again, and gradients are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from privctl.train.clipping import Clipping, PerExample
from tests.train.clipping.support import Batch, agree, distance

ROWS, PLACES, WIDTH = 5, 3, 4


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


class Counted(nn.Module):
    """A linear layer and an activation that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.sin(self.linear(x))


class Scaled(nn.Module):
    """A factor after the only child."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = Counted(), nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.inner(x)


class Between(Scaled):
    """A child before the factor and one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = Counted()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(self.scale * self.inner(x)))


class Twice(Scaled):
    """The same child before the factor and after it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.scale * self.inner(x))


class InPlace(Scaled):
    """The child's output is shifted in place, at first by nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x)
        found += self.shift
        return self.scale * found


class Returned(Scaled):
    """The child's output is returned, too."""

    def forward(self, x: Tensor) -> Any:
        found = self.inner(x)
        return found, self.scale + found


class Dropped(Scaled):
    """The child draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.dropout(self.inner(x))


class Drawing(Dropped):
    """The module itself draws random numbers after its child."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.scale * self.dropout(self.inner(x)), 0.5, self.training)


class Listed(Scaled):
    """Children in a list, one of which is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList([Counted(), Counted()])

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.more
        return self.scale * first(second(first(x)).relu())


class Shared(Scaled):
    """Two children have a layer in common."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Sequential(self.inner), nn.Sequential(self.inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.two(self.one(x))


class Checkpointed(Scaled):
    """The child's outputs are computed again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Around(nn.Module):
    """The module under test between two layers."""

    def __init__(self, tested: nn.Module) -> None:
        super().__init__()
        self.before, self.tested, self.after = nn.Linear(WIDTH, WIDTH), tested, nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.tested(self.before(x))
        if isinstance(found, tuple):
            first, second = found
            first += 1  # the module above may change what it was given
            found = first * second
        return self.after(torch.tanh(found)).flatten(1).sum(1)


def losses(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["x"])


def batch(rows: int = ROWS) -> Batch:
    return {"x": torch.randn(rows, PLACES, WIDTH)}


@pytest.mark.parametrize("kind", [Scaled, Between, Twice, InPlace, Returned, Listed, Shared, Checkpointed])
def test_gradients_are_those_of_each_example_alone(kind: type[nn.Module]) -> None:
    for checked in (True, False):
        agree(Around(kind()), losses, batch(), tolerance=1e-5, checked=checked)


@pytest.mark.parametrize("kind", [Scaled, Between, Twice, Dropped, Drawing])
def test_several_batches_of_one_engine(kind: type[nn.Module]) -> None:
    model = Around(kind()).train()
    with PerExample(model, Clipping(norm=1e6)) as engine:
        for rows in (1, ROWS, 2, ROWS + 1):
            data = batch(rows)
            model.zero_grad()
            torch.manual_seed(rows)
            engine.accumulate(lambda data=data: losses(model, data))
            found = {name: p.grad.clone() for name, p in engine.trainable.items()}
            torch.manual_seed(rows)
            expected = torch.autograd.grad(losses(model, data).sum(), list(engine.trainable.values()))
            assert distance(found, dict(zip(found, expected, strict=True))) < 1e-5


def calls(kind: type[nn.Module], *, watch: bool = False) -> dict[str, int]:
    """How often each layer of the module is called in a second batch, besides its calls in the forward pass."""
    plain, model = Around(kind()), Around(kind())
    if watch:
        model.tested.inner.register_forward_hook(lambda *_: None)
    data = batch()
    losses(plain, data)
    once = {name: layer.calls for name, layer in plain.named_modules() if isinstance(layer, Counted)}
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: losses(model, data))
        before = {name: layer.calls for name, layer in model.named_modules() if isinstance(layer, Counted)}
        engine.accumulate(lambda: losses(model, data))
    return {name: model.get_submodule(name).calls - before[name] - once[name] for name in once}


class Later(Between):
    """The parameter reaches the loss through the second child only for large inputs."""

    def forward(self, x: Tensor) -> Tensor:
        large = (x.abs().amax((1, 2), keepdim=True) > 20).to(x.dtype)
        return self.scale * self.inner(x) + large * self.last(self.scale * x)


def test_a_use_that_matters_only_in_a_later_batch() -> None:
    model = Around(Later())
    with PerExample(model, Clipping(norm=1e6)) as engine:
        for factor in (1, 1000):
            data = {"x": factor * batch()["x"]}
            model.zero_grad()
            engine.accumulate(lambda data=data: losses(model, data))
            found = {name: p.grad.clone() for name, p in engine.trainable.items()}
            expected = torch.autograd.grad(losses(model, data).sum(), list(engine.trainable.values()))
            assert distance(found, dict(zip(found, expected, strict=True))) < 1e-5


def test_an_output_that_is_shifted_in_place_from_the_second_batch_on() -> None:
    model, data = Around(InPlace()), batch()
    with PerExample(model, Clipping(norm=1e6)) as engine:
        engine.accumulate(lambda: losses(model, data))
        model.tested.shift.fill_(1)
        model.zero_grad()
        engine.accumulate(lambda: losses(model, data))
        found = {name: p.grad.clone() for name, p in engine.trainable.items()}
        expected = torch.autograd.grad(losses(model, data).sum(), list(engine.trainable.values()))
    assert distance(found, dict(zip(found, expected, strict=True))) < 1e-5


def test_a_child_before_the_parameter_is_not_run_again() -> None:
    assert calls(Scaled) == {"tested.inner": 0}
    assert calls(Dropped) == {"tested.inner": 0}
    assert calls(Listed) == {"tested.inner": 0, "tested.more.0": 0, "tested.more.1": 0}


def test_a_child_after_the_parameter_is_run_again() -> None:
    assert calls(Between) == {"tested.inner": 0, "tested.last": 1}
    assert calls(Twice)["tested.inner"] == 2


def test_a_child_is_run_again_if_its_output_may_have_been_changed() -> None:
    assert calls(InPlace)["tested.inner"] > 0
    assert calls(Returned)["tested.inner"] > 0
    assert calls(Scaled, watch=True)["tested.inner"] > 0


def test_children_run_as_before_after_an_error() -> None:
    model = Around(Scaled())
    with PerExample(model, Clipping(norm=1.0)) as engine, pytest.raises(RuntimeError, match="shapes cannot"):
        engine.accumulate(lambda: losses(model, {"x": torch.randn(ROWS, PLACES, WIDTH + 1)}))
    assert "forward" not in vars(model.tested.inner)
    agree(model, losses, batch(), tolerance=1e-5)
