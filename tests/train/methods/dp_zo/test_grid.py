"""Weights that move along a direction and back: every bit, and what cannot move so."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import DivergedError, InputError
from privctl.train.directional import direction
from privctl.train.directional.directions import sign_pieces
from privctl.train.methods.dp_zo.grid import MovableWeights

SEED = b"public"


def parameters(seed: int = 0) -> dict[str, nn.Parameter]:
    """Weights of sizes from 1e-6 to 100, zeros, and one at a power of two."""
    drawn = torch.Generator().manual_seed(seed)
    sizes = {"a": 1.0, "b": 1e-6, "c": 100.0, "d": 0.0}
    trainable = {name: nn.Parameter(torch.randn(37, 5, generator=drawn) * size) for name, size in sizes.items()}
    return {**trainable, "e": nn.Parameter(torch.tensor([2.0, -2.0, 1.9999999]))}


def copied(tensors: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def same_bits(found: dict[str, nn.Parameter], expected: dict[str, Tensor]) -> bool:
    return all(torch.equal(found[n].detach().view(torch.int32), expected[n].view(torch.int32)) for n in expected)


@pytest.mark.parametrize("perturbation", [1e-3, 0.013, 0.9])
def test_weights_come_back_to_the_last_bit(perturbation: float) -> None:
    held = parameters()
    weights = MovableWeights(held, SEED, perturbation)
    weights.onto_grid()
    before = copied(held)
    for step in range(30):
        places = []
        with weights.moved(step, 0) as signs:
            for sign in signs:
                places.append(copied(held))
                for name, each in held.items():
                    distance = (each.detach().double() - before[name].double()).abs()
                    assert torch.unique(distance).numel() == 1, "each weight moves by the same, exactly"
                    assert float(distance.max()) == pytest.approx(perturbation, rel=0.05)
                assert sign in (1, -1)
        assert len(places) == 2
        assert same_bits(held, before)
    weights.onto_grid()
    assert same_bits(held, before), "what lies on its grid stays there"


def test_weights_off_the_grid_would_drift() -> None:
    held = parameters()
    weights = MovableWeights(held, SEED, 1e-3)
    before = copied(held)
    with weights.moved(0, 0) as signs:
        list(signs)
    assert not same_bits(held, before)


def test_weights_come_back_where_a_pass_fails() -> None:
    held = parameters()
    weights = MovableWeights(held, SEED, 1e-3)
    weights.onto_grid()
    before = copied(held)
    with pytest.raises(RuntimeError, match="planted"), weights.moved(3, 1) as signs:
        next(signs)
        raise RuntimeError("planted")
    assert same_bits(held, before)


def test_rounding_onto_the_grid_is_small() -> None:
    held = parameters()
    before = copied(held)
    MovableWeights(held, SEED, 1e-3).onto_grid()
    for name, each in held.items():
        largest = max(float(before[name].abs().max()), 1e-3)
        assert float((each.detach() - before[name]).abs().max()) <= largest * 2.0**-22


def test_a_step_moves_weights_as_in_exact_arithmetic() -> None:
    held = parameters()
    weights = MovableWeights(held, SEED, 1e-3)
    before = copied(held)
    weights.descend(7, torch.tensor([0.25, -0.5], dtype=torch.float64), 0.1)
    shapes = {name: each.shape for name, each in held.items()}
    count = sum(shape.numel() for shape in shapes.values())
    along = [direction(SEED, 7, number, shapes) for number in range(2)]
    for name, each in held.items():
        signs = [directions[name].double() * math.sqrt(count) for directions in along]
        expected = 0.9 * before[name].double() - 0.25 * signs[0] + 0.5 * signs[1]
        assert torch.allclose(each.detach().double(), expected, rtol=1e-6, atol=1e-6)


def test_pieces_are_the_direction() -> None:
    shapes = {"b": torch.Size([300, 700]), "a": torch.Size([5]), "c": torch.Size([131073])}
    whole = direction(SEED, 3, 2, shapes)
    joined = {name: torch.zeros(shape.numel()) for name, shape in shapes.items()}
    for name, begin, signs in sign_pieces(SEED, 3, 2, shapes):
        joined[name][begin : begin + len(signs)] = signs
    assert all(torch.equal(joined[name].view(shapes[name]), whole[name].sign()) for name in shapes)


def test_what_cannot_move_is_refused() -> None:
    half = {"a": nn.Parameter(torch.ones(3, dtype=torch.float16))}
    with pytest.raises(InputError, match="float32"):
        MovableWeights(half, SEED, 1e-3)
    with pytest.raises(InputError, match="--train"):
        MovableWeights({}, SEED, 1e-3)
    with pytest.raises(InputError, match=r"--perturbation 1e-06 is lost beside the weights of 'a'"):
        MovableWeights({"a": nn.Parameter(torch.full((3,), 1e3))}, SEED, 1e-6).onto_grid()
    with pytest.raises(DivergedError, match="NaN or infinity"):
        MovableWeights({"a": nn.Parameter(torch.tensor([1.0, math.nan]))}, SEED, 1e-3).onto_grid()
