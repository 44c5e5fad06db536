"""What quantizing a layer changes on made-up inputs: the divergence, who is read, and what a measurement leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from privctl.data.columns import HeadKind
from privctl.models.choices import TaskName
from privctl.models.tasks.answers import QuestionAnswering
from privctl.models.tasks.classification import ImageClassification
from privctl.parallel import Workers
from privctl.train.methods.dpquant import synthetic_sensitivity as module
from privctl.train.methods.dpquant.synthetic_sensitivity import SyntheticSensitivity, divergences, synthetic_inputs
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.settings.choices import FormatName
from privctl.train.steps.micro_batches import MicroBatches
from tests.few import few
from tests.models.tasks.test_tasks import model_for, task_for
from tests.train.methods.dpquant.support import CPU, NAMES, Blobs, network


def logits(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def of(problem: HeadKind) -> Any:
    return SimpleNamespace(problem=problem)


def test_divergences_are_those_of_other_libraries() -> None:
    before, after = logits(3, 5, 7, seed=0), logits(3, 5, 7, seed=1)
    tokens = torch.as_tensor(stats.entropy(before.softmax(-1).numpy(), after.softmax(-1).numpy(), axis=-1))
    weights = logits(3, 5, seed=6).softmax(1)
    found = divergences(of(HeadKind.ONE), {"weights": weights}, before, after)
    np.testing.assert_allclose(found, (tokens * weights).sum(1), rtol=1e-9)
    # Several labels are as many coins, a number is the mean of a Gaussian.
    before, after = before[:, 0], after[:, 0]
    np.testing.assert_allclose(divergences(of(HeadKind.ONE), {}, before, after), tokens[:, 0], rtol=1e-9)
    coins = [torch.distributions.Bernoulli(logits=each) for each in (before, after)]
    expected = torch.distributions.kl_divergence(*coins).mean(1)
    np.testing.assert_allclose(divergences(of(HeadKind.SEVERAL), {}, before, after), expected, rtol=1e-9)
    normal = [torch.distributions.Normal(each[:, :1], 1.0) for each in (before, after)]
    expected = torch.distributions.kl_divergence(*normal).sum(1)
    np.testing.assert_allclose(divergences(of(HeadKind.NUMBER), {}, before[:, :1], after[:, :1]), expected, rtol=1e-9)


def test_a_divergence_is_how_much_the_loss_rises_on_labels_of_the_answer() -> None:
    before, after = logits(4, 6, seed=2), logits(4, 6, seed=3)
    rises = torch.stack(
        [
            functional.cross_entropy(after, label, reduction="none")
            - functional.cross_entropy(before, label, reduction="none")
            for label in torch.arange(6)[:, None].expand(6, 4)
        ],
        dim=1,
    )
    expected = (before.softmax(-1) * rises).sum(1)
    np.testing.assert_allclose(divergences(of(HeadKind.ONE), {}, before, after), expected, rtol=1e-9)
    # The other direction is another number, and an answer that cannot be given counts for nothing.
    assert not torch.allclose(divergences(of(HeadKind.ONE), {}, after, before), expected, rtol=1e-2)
    never = torch.full((4, 1), -torch.inf, dtype=torch.float64)
    longer = divergences(of(HeadKind.ONE), {}, torch.cat([before, never], 1), torch.cat([after, never], 1))
    np.testing.assert_allclose(longer, expected, rtol=1e-9)


def test_the_ends_of_an_answer_are_chosen_among_tokens() -> None:
    task = QuestionAnswering.__new__(QuestionAnswering)
    before, after = logits(2, 6, 2, seed=4), logits(2, 6, 2, seed=5)
    padded = torch.tensor([[False] * 5 + [True]] * 2)
    shares, others = (each[:, :5].softmax(1).numpy() for each in (before, after))
    expected = stats.entropy(shares, others, axis=1).mean(1)
    np.testing.assert_allclose(divergences(task, {"padded": padded}, before, after), expected, rtol=1e-9)


def sensitivity(net: nn.Module, task: Any, names: tuple[str, ...], micro_examples: int = 64) -> SyntheticSensitivity:
    return SyntheticSensitivity(
        network=net,
        layers=QuantizedLayers(network=net, format=FORMATS[FormatName.LUQ_FP4], seed=b"test"),
        names=names,
        task=task,
        losses=lambda batch: task.losses(net, batch),
        unit=0.01,
        micro=MicroBatches(task=task, examples=micro_examples, tokens=10_000, device=CPU),
        workers=Workers(),
        device=CPU,
    )


def test_measurements_round_anew_and_leave_the_network_as_it_was() -> None:
    net, task = network(), Blobs(module.ROUNDS * module.INPUTS)
    measurement = sensitivity(net, task, NAMES)
    found = measurement.measure(4)
    assert (found >= 0).all()
    assert found.max() > 0
    np.testing.assert_array_equal(found, measurement.measure(4))
    assert not np.allclose(measurement.measure(5), found, rtol=1e-6)
    np.testing.assert_allclose(sensitivity(net, task, NAMES, 3).measure(4), found, rtol=1e-6)
    assert measurement.layers.chosen == frozenset()
    assert not net._forward_hooks


def test_a_layer_that_spoils_the_answer_is_the_worst() -> None:
    net, task = network(), Blobs(module.ROUNDS * module.INPUTS)
    whole = sensitivity(net, task, NAMES)
    clean = whole._answers

    def spoiled(batch: Any) -> Tensor:
        answers = clean(batch)
        return answers * torch.nan if whole.layers.chosen == {"2"} else answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyntheticSensitivity, "_answers", lambda self, batch: spoiled(batch))
        found = whole.measure(0)
    assert np.isfinite(found).all()
    assert found.argmax() == 1


class Untouchable(Sequence[Any]):
    """Records that may not be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: Any) -> Any:
        raise AssertionError("a private record was read")


def sealed(task: Any) -> Any:
    """The task, whose records cannot be read."""
    if isinstance(task, ImageClassification):
        pixels = SimpleNamespace(dtype=task.images.pixels.dtype, shape=task.images.pixels.shape)
        return replace(task, images=replace(task.images, pixels=pixels))
    return replace(task, corpus=replace(task.corpus, examples=Untouchable()))


@pytest.mark.parametrize(
    ("kind", "name"),
    few(
        [
            ("gpt2", TaskName.CAUSAL_LM),
            ("vit", TaskName.IMAGE_CLASSIFICATION),
            ("bert", TaskName.MASKED_LM),
            ("bert", TaskName.TEXT_CLASSIFICATION),
        ],
        0,
        1,
    ),
)
def test_no_record_is_read(kind: str, name: TaskName, tmp_path: Path) -> None:
    """And the task's own records, in place of made-up inputs, would be."""
    model = model_for(tmp_path / kind, kind, name)
    net, task = model.network, sealed(task_for(model))
    names = QuantizedLayers(network=net, format=FORMATS[FormatName.LUQ_FP4], seed=b"test").names[:2]
    found = sensitivity(net, synthetic_inputs(task, 8), names).measure(0)
    assert (found > 0).any()
    with pytest.raises((AssertionError, TypeError), match="private record|not subscriptable"):
        sensitivity(net, task, names)._turn(range(3), 0)
