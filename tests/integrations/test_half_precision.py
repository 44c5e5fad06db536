"""Private loops under autocast and with frozen weights in half precision leave more of the clip norm for rounding."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.integrations.private_training import PrivateTraining
from privctl.train.clipping.factors import ROUNDING_MARGIN, ROUNDING_MARGIN_REDUCED
from tests.integrations.loops import Loop

NORM = 0.3


def under_autocast(loop: Loop, inputs: Tensor, labels: Tensor, *, factor: float = 1e3) -> Callable[[], Tensor]:
    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return factor * F.cross_entropy(loop.model(inputs).float(), labels, reduction="none")

    return losses


def in_full(loop: Loop, inputs: Tensor, labels: Tensor, *, factor: float = 1e3) -> Callable[[], Tensor]:
    return lambda: factor * F.cross_entropy(loop.model(inputs), labels, reduction="none")


def largest_sum(private: PrivateTraining, rows: int) -> float:
    """The norm of the sum of the batch's gradients, per record and in clip norms, before noise is added."""
    length = math.sqrt(sum(float(each.double().square().sum()) for each in private._sums))
    return length * private._batch_size / rows / NORM


def rounding_premise(private: PrivateTraining) -> str:
    return next(each.statement for each in private.guarantee().assumptions if each.name == "rounding of sums")


@pytest.mark.parametrize(
    ("losses", "margin"), [(under_autocast, ROUNDING_MARGIN_REDUCED), (in_full, ROUNDING_MARGIN)], ids=["bf16", "full"]
)
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_margin_is_that_of_the_precision_of_a_pass(
    losses: Callable[..., Callable[[], Tensor]], margin: float, adaptive: bool
) -> None:
    more = {"target_unclipped_quantile": 0.5} if adaptive else {}
    loop = Loop(clip_norm=NORM, **more)
    inputs, labels = next(iter(loop.private.loader))
    loop.private._drawn.begin(1)  # a single record, so that the sum's norm is that of its clipped gradient
    loop.private._stage = type(loop.private._stage).DRAWN
    loop.private.backward(losses(loop, inputs[:1], labels[:1]))
    assert largest_sum(loop.private, 1) == pytest.approx(1 - margin, rel=1e-4)
    assert f"the {margin:g} of" in rounding_premise(loop.private)


def test_passes_of_both_precisions_state_the_smaller_margin() -> None:
    loop = Loop(clip_norm=NORM)
    for number, (inputs, labels) in enumerate(loop.private.loader):
        loop.private.backward((under_autocast if number % 2 else in_full)(loop, inputs, labels))
        loop.optimizer.step()
    assert f"the {ROUNDING_MARGIN:g} of" in rounding_premise(loop.private)


def test_a_count_of_unclipped_gradients_leaves_more_under_autocast() -> None:
    """What a clipped gradient adds to the count is nearer to 0, as rounding may move the norms of others more."""
    counts = []
    for losses in (in_full, under_autocast):
        loop = Loop(clip_norm=NORM, target_unclipped_quantile=0.5)
        batches = iter(loop.private.loader)  # kept, as a loop that ends leaves its batch
        inputs, labels = next(batches)
        loop.private.backward(losses(loop, inputs, labels))
        counts.append(float(loop.private._count) / len(labels))
    assert counts == pytest.approx([-(0.5 - ROUNDING_MARGIN * 4.5), -(0.5 - ROUNDING_MARGIN_REDUCED * 1.5)])


def test_frozen_weights_in_half_precision_leave_more() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(40, 5), torch.randint(0, 3, (40,)))
    frozen, head = nn.Linear(5, 7).bfloat16().requires_grad_(False), nn.Linear(7, 3)
    model = nn.Sequential(frozen, head)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    private = privctl.make_private(
        model, optimizer, DataLoader(data, batch_size=8), noise_multiplier=1.0, clip_norm=NORM
    )
    inputs, labels = next(iter(private.loader))
    private._drawn.begin(1)
    private._stage = type(private._stage).DRAWN
    private.backward(
        lambda: 1e3 * F.cross_entropy(head(frozen(inputs[:1].bfloat16()).float()), labels[:1], reduction="none")
    )
    assert largest_sum(private, 1) == pytest.approx(1 - ROUNDING_MARGIN_REDUCED, rel=1e-4)
    assert f"the {ROUNDING_MARGIN_REDUCED:g} of" in rounding_premise(private)
