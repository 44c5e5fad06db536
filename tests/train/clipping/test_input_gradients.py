"""Input gradients of convolutions formed in parts: each way against autograd, and where they are left to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from privctl.train.clipping import Clipping, PerExample, input_gradients
from tests.train.clipping.support import agree, distance

COUNT = 5


@pytest.fixture
def formed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Parts of one example or a few, and of each tensor whose gradient is formed by parts how many read it."""
    found: list[int] = []
    real = input_gradients._sum_of

    def counted(readers: Any, inputs: Tensor) -> Tensor:
        found.append(len(readers))
        assert len(input_gradients._parts(inputs, readers[0].gradient)) > 1
        return real(readers, inputs)

    monkeypatch.setattr(input_gradients, "_sum_of", counted)
    monkeypatch.setattr(input_gradients, "PART_BYTES", 6000 // torch.get_num_threads())
    return found


class Block(nn.Module):
    """A convolution, and one past it, of one tensor; ``used`` says which of them the result depends on."""

    def __init__(self, first: nn.Module, past: nn.Module, used: tuple[float, float] = (1.0, 1.0)) -> None:
        super().__init__()
        self.first, self.past, self.used = first, past, used

    def forward(self, x: Tensor) -> Tensor:
        first, past = self.first(x), self.past(x)
        parts = [factor * part for factor, part in zip(self.used, (first, past), strict=True) if factor]
        return functional.relu(torch.stack(parts).sum(0))


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return found


class Standardized(nn.Conv2d):
    """Its weight is not the one that is multiplied."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight / weight.std((1, 2, 3), keepdim=True), bias)


def network(block: nn.Module, outputs: int, one_dimension: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    stem = nn.Conv1d(2, 6, 3, padding=1) if one_dimension else nn.Conv2d(2, 6, 3, padding=1)
    pool = nn.AdaptiveAvgPool1d(1) if one_dimension else nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(stem, nn.Tanh(), block, pool, nn.Flatten(), nn.Linear(outputs, 3))


def images(*size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(COUNT, 2, *size, generator=generator), "labels": torch.arange(COUNT) % 3}


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


def conv(outputs: int, kernel: int, **named: Any) -> nn.Conv2d:
    return nn.Conv2d(6, outputs, kernel, **named)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "strided": (lambda: Block(conv(8, 3, stride=2, padding=1), conv(8, 1, stride=2)), [2]),
    "pointwise first": (lambda: Block(conv(8, 1, stride=2, bias=False), conv(8, 3, stride=2, padding=1)), [2]),
    "grouped, dilated": (lambda: Block(conv(6, 3, padding=2, dilation=2, groups=3), conv(6, 1, groups=2)), [2]),
    "same size": (lambda: Block(conv(6, 3, padding=1), nn.Identity()), [1]),
    "changed in place": (
        lambda: nn.Sequential(Block(conv(6, 3, padding=1), conv(6, 1)), conv(6, 3), nn.ReLU(inplace=True)),
        [1, 2],
    ),
    "one module twice": (lambda: (lambda one: Block(one, one))(conv(8, 3, padding=1)), [2]),
    "one frozen": (lambda: Block(conv(8, 3, padding=1), conv(8, 1).requires_grad_(False)), [1]),
    "only the first counts": (lambda: Block(conv(8, 3, padding=1), conv(8, 1), (1, 0)), [1]),
    "only the second counts": (lambda: Block(conv(8, 3, padding=1), conv(8, 1), (0, 1)), [1]),
    "checkpointed": (lambda: Checkpointed(Block(conv(8, 3, stride=2, padding=1), conv(8, 1, stride=2))), [2]),
    "one checkpointed": (lambda: Block(Checkpointed(conv(8, 3, padding=1)), conv(8, 1)), [2]),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_sums_and_norms_are_those_of_each_example_alone(name: str, formed: list[int]) -> None:
    make, readers = BLOCKS[name]
    block = make()
    outputs = next(m for m in block.modules() if isinstance(m, nn.Conv2d)).out_channels
    agree(network(block, outputs), losses, images(13, 12), checked=False)
    assert formed == readers


def test_strided_convolutions_of_sounds_form_their_input_gradients(formed: list[int]) -> None:
    block = Block(nn.Conv1d(6, 8, 3, stride=2, padding=1), nn.Conv1d(6, 8, 1, stride=2))
    agree(network(block, 8, one_dimension=True), losses, images(151), checked=False)
    assert formed == [2]


def test_channels_last(formed: list[int]) -> None:
    model, batch = network(BLOCKS["strided"][0](), 8), images(13, 12)
    batch["x"] = batch["x"].contiguous(memory_format=torch.channels_last)
    agree(model.to(memory_format=torch.channels_last), losses, batch, checked=False)  # type: ignore[call-overload]
    assert formed == [2]


def test_a_reader_that_is_left_out_is_seen(formed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    real = input_gradients._sum_of
    monkeypatch.setattr(input_gradients, "_sum_of", lambda readers, inputs: real(readers[:1], inputs))
    with pytest.raises(AssertionError):
        agree(network(BLOCKS["strided"][0](), 8), losses, images(13, 12), checked=False)


@pytest.mark.parametrize("passes", [1, 2])
def test_every_step_after_the_compared_one_adds_the_same(passes: int, formed: list[int]) -> None:
    model, batch = network(BLOCKS["strided"][0](), 8), images(13, 12)
    sums = []
    with PerExample(model, Clipping(norm=0.5), passes=passes) as engine:
        for _ in range(3):
            model.zero_grad()
            engine.accumulate(lambda: losses(model, batch))
            sums.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert formed == [2] * 2 * passes, "the first is autograd's own"
    assert max(distance(each, sums[0]) for each in sums[1:]) < 1e-5


def _hooked(model: nn.Sequential) -> None:
    model[2].register_forward_hook(lambda module, inputs, output: 3 * output)


def _convolved(model: nn.Sequential) -> None:
    kernel = torch.randn(8, 8, 1, 1, generator=torch.Generator().manual_seed(2))
    model[2].register_forward_hook(lambda module, inputs, output: functional.conv2d(output, kernel))


def _with_tensor_hook(model: nn.Sequential) -> None:
    def add_hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: 2 * gradient)  # type: ignore[no-untyped-call]

    model[2].register_forward_hook(add_hook)


def _replaced(model: nn.Sequential) -> None:
    block = model[2]
    assert isinstance(block, nn.Conv2d)
    block.__dict__["forward"] = lambda x: block._conv_forward(x, 2 * block.weight, None)


LEFT: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Sequential], None] | None]] = {
    "a weight of its own": (lambda: Standardized(6, 8, 3), None),
    "padded otherwise": (lambda: conv(8, 3, padding=1, padding_mode="circular"), None),
    "padded by a name": (lambda: conv(8, 3, padding="same"), None),
    "an output that a hook changes": (lambda: conv(8, 3), _hooked),
    "an output that a hook convolves": (lambda: conv(8, 3), _convolved),
    "a gradient that a hook changes": (lambda: conv(8, 3), _with_tensor_hook),
    "another forward pass": (lambda: conv(8, 3, bias=False), _replaced),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_convolutions_are_left_to_autograd(name: str, formed: list[int]) -> None:
    make, change = LEFT[name]
    model, batch = network(make(), 8), images(13, 12)
    if change is not None:
        change(model)
    first = gradient_of_stem(model, batch, compared=False)
    assert not formed
    assert distance(first, gradient_of_stem(model, batch, compared=True)) < 1e-5


def gradient_of_stem(model: nn.Sequential, batch: dict[str, Tensor], *, compared: bool) -> dict[str, Tensor]:
    """The sum of the first layer's gradients, hardly clipped: by the engine, or ``compared``, by autograd alone."""
    model.zero_grad()
    stem = model[0]
    if compared:
        losses(model, batch).sum().backward()
    else:
        with PerExample(model, Clipping(norm=1e6)) as engine:
            engine._checked = True
            engine.accumulate(lambda: losses(model, batch))
    return {name: p.grad.clone() for name, p in stem.named_parameters() if p.grad is not None}
