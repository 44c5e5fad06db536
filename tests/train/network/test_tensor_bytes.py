"""Bytes of tensors are counted exactly: each memory once, for as long as it is held."""

from __future__ import annotations

import torch
from torch import nn

from privctl.train.network.tensor_bytes import TensorBytes, bytes_of


def test_what_is_held_and_the_most_of_it() -> None:
    before = torch.zeros(10_000)
    counted = TensorBytes()
    counted.start()
    first = before + 1
    half = first.view(100, 100)[:50]
    second = first.bfloat16()
    assert counted.held == 40_000 + 20_000
    del first
    assert counted.held == 60_000  # what is left of it holds all of it
    del half
    assert (counted.held, counted.most) == (20_000, 60_000)
    counted.reset_peak()
    second.add_(1)
    assert counted.most == 20_000
    counted.stop()
    counted.stop()
    third = before * 2
    assert counted.held == second.nbytes < third.nbytes


def test_a_step_of_training_holds_weights_gradients_and_what_is_kept() -> None:
    """A layer of 100 x 100 keeps its input."""
    layer, inputs = nn.Linear(100, 100, bias=False), torch.ones(1000, 100)
    counted = TensorBytes()
    counted.start()
    layer(inputs).square().sum().backward()
    counted.stop()
    assert bytes_of(layer) == 40_000
    assert counted.held == 40_000
    # The output, and up to three tensors of its size on the way back through the square; nothing of the weight's.
    assert 2 * 400_000 <= counted.most < 5 * 400_000


def test_memory_that_is_let_go_of_and_taken_again_while_its_tensor_lives() -> None:
    """As FSDP does with the tensors that it gathers parameters into."""
    counted = TensorBytes()
    counted.start()
    gathered = torch.zeros(100)
    gathered.untyped_storage().resize_(0)
    other = torch.zeros(10)
    torch.empty(1000, device="meta")
    assert (counted.held, counted.most) == (40, 400)
    gathered.untyped_storage().resize_(400)
    assert (counted.held, counted.most) == (440, 440)
    counted.stop()
    del gathered
    assert counted.held == other.nbytes
