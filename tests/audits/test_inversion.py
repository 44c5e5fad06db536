"""The benchmark of images from weights: its attacks find what is there, and its test errs as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.bench.inversion_attacks import (
    Target,
    by_class,
    by_conditions,
    margins,
    nearest,
    residual,
    side_p_value,
    smoothed,
)

SHAPE = (1, 4, 4)


def images(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def stationary(records: torch.Tensor, classes: torch.Tensor) -> nn.Module:
    """A linear classifier whose weights are the sum of the gradients of the records' margins."""
    layer = nn.Linear(16, 2, bias=False)
    network = nn.Sequential(nn.Flatten(), layer)
    total = torch.autograd.grad(margins(network(records), classes).sum(), layer.weight)[0]
    with torch.no_grad():
        layer.weight.copy_(total)
    return network


def test_p_value_is_the_share_of_splits_of_the_ranks() -> None:
    assert side_p_value([0.9, 0.8, 0.7], [0.1, 0.2, 0.3]) == pytest.approx(1 / 20)
    assert side_p_value([0.9, 0.8, 0.2], [0.1, 0.7, 0.3]) == pytest.approx(
        4 / 20
    )  # 6 + 5 + 2, and sums of ranks above it: 15, 14 and another 13


def test_nearness_is_the_largest_correlation_whatever_the_brightness() -> None:
    reconstructed, records = images(3, 1), images(2, 2)
    correlations = np.corrcoef(torch.cat([records, reconstructed]).flatten(1).numpy())[:2, 2:]
    assert nearest(3 * reconstructed - 0.5, records) == pytest.approx(correlations.max(1), abs=1e-5)


def test_gradients_of_the_records_explain_a_stationary_point_and_no_others_do() -> None:
    records, classes = images(4, 3), torch.tensor([0, 1, 0, 1])
    target = Target(stationary(records, classes), SHAPE)
    assert residual(target, records, classes) < 1e-9
    assert residual(target, images(4, 4), classes) > 0.5


def test_conditions_bring_an_image_back_where_one_record_made_the_weights() -> None:
    record = images(1, 5)
    target = Target(stationary(record, torch.tensor([0])), SHAPE)
    reconstructed, left = by_conditions(target, 1, 0, steps=300)
    assert left < 0.01
    assert nearest(reconstructed, record)[0] > 0.99
    assert nearest(by_class(target, 1, 0), record)[0] > 0.8  # a linear classifier's class looks like its record


def test_a_smoothed_network_has_the_same_outputs_and_derivatives_that_depend_on_its_inputs() -> None:
    network = nn.Sequential(nn.Linear(16, 5), nn.ReLU())
    inputs = images(3, 6).flatten(1)
    before = network(inputs)
    assert torch.equal(smoothed(network)(inputs), before)
    values = torch.tensor([-1.0, 0.001, 1.0], requires_grad=True)
    first = torch.autograd.grad(network[1](values).sum(), values, create_graph=True)[0]
    assert first.tolist() == pytest.approx([0, 1 / (1 + np.exp(-0.15)), 1])
    assert torch.autograd.grad(first.sum(), values)[0][1] > 1


def trials(seed: int, *, peek: bool) -> list[float]:
    """P-values where nothing was learned; with ``peek`` the reconstructions were begun from one side's records."""
    source = np.random.default_rng(seed)
    found = []
    for _ in range(200):
        sides = torch.from_numpy(source.standard_normal((20, *SHAPE)))
        pixels = torch.from_numpy(source.standard_normal((20, *SHAPE)))
        if peek:
            pixels[:10] += sides[:10]
        near = nearest(pixels, sides)
        found.append(side_p_value(near[:10].tolist(), near[10:].tolist()))
    return found


def test_level_where_nothing_was_learned_and_what_happens_to_one_who_looks_at_the_sides() -> None:
    assert (
        np.mean([p <= 0.05 for p in trials(7, peek=False)]) <= 0.1
    )  # with 200 sets, more than that comes with a chance of 0.1 %
    assert np.mean([p <= 0.05 for p in trials(7, peek=True)]) > 0.5
