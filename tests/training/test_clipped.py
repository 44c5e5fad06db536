"""Clipped training: each gradient clipped exactly, the fixed normaliser, one visit an epoch, nothing skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from privctl.domain.errors import InputFault, UsageFault
from privctl.domain.mechanism import ClippedTraining, Optimizer
from privctl.training import clipped
from privctl.training.clipped import clipped_sum, pad, train_clipped, visiting_order

VOCABULARY = 30
DATA = [np.random.default_rng(i).integers(1, VOCABULARY, size=4 + i % 5).tolist() for i in range(11)]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(seed: int = 0, **changes: Any) -> GPT2LMHeadModel:
    """A GPT-2 small enough to differentiate in milliseconds; dropout is left on, padding has an id."""
    settings = {"vocab_size": VOCABULARY, "n_positions": 12, "n_embd": 8, "n_layer": 2, "n_head": 2, "pad_token_id": 0}
    torch.manual_seed(seed)
    config = GPT2Config(**{**settings, "bos_token_id": 1, "eos_token_id": 1, **changes})
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config)


def facts(**changes: Any) -> ClippedTraining:
    settings = {"epochs": 2, "learning_rate": 0.3, "clip_norm": 0.5, "dataset_size": len(DATA), "batch_size": 4}
    return ClippedTraining(**{**settings, **changes})


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradient(model: torch.nn.Module, ids: Sequence[int]) -> tuple[dict[str, Tensor], float]:
    """One example's gradient by plain autograd, from its tokens alone."""
    model.eval()
    model.zero_grad()
    tokens = torch.tensor([ids])
    loss = functional.cross_entropy(model(tokens, attention_mask=torch.ones_like(tokens)).logits[0, :-1], tokens[0, 1:])
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}, loss.item()


def norm(gradients: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def looped_sum(model: torch.nn.Module, data: Sequence[Sequence[int]], clip: float) -> dict[str, Tensor]:
    """The definition: clip each example's whole gradient, then add."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for ids in data:
        gradients, _ = gradient(model, ids)
        factor = min(1.0, clip / norm(gradients))
        for name, g in gradients.items():
            total[name] += factor * g
    return total


def difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Distance relative to the length of ``right``."""
    return norm({name: left[name] - right[name] for name in right}) / norm(right)


def batch_mean_clipped(model: torch.nn.Module, data: Sequence[Sequence[int]], clip: float) -> dict[str, Tensor]:
    """A planted bug: the sum's mean is clipped instead of each example."""
    total = looped_sum(model, data, math.inf)
    factor = min(1.0, clip * len(data) / norm(total))
    return {name: factor * g for name, g in total.items()}


def each_tensor_clipped(model: torch.nn.Module, data: Sequence[Sequence[int]], clip: float) -> dict[str, Tensor]:
    """A planted bug: every tensor is clipped by itself instead of the whole gradient."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for ids in data:
        for name, g in gradient(model, ids)[0].items():
            total[name] += min(1.0, clip / float(g.norm())) * g
    return total


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_sum_equals_a_loop_over_single_examples(share: float) -> None:
    model = network()
    lengths = [norm(gradient(model, ids)[0]) for ids in DATA]
    clip = float(np.quantile(lengths, share))
    found = clipped_sum(model.eval(), dict(model.named_parameters()), pad(DATA), clip)
    assert difference(found.gradients, looped_sum(model, DATA, clip)) < 1e-5
    np.testing.assert_allclose(found.norms.numpy(), lengths, rtol=1e-5)
    np.testing.assert_allclose(found.losses.detach().numpy(), [gradient(model, ids)[1] for ids in DATA], rtol=1e-5)


@pytest.mark.parametrize("bug", [batch_mean_clipped, each_tensor_clipped])
def test_comparison_sees_other_ways_to_clip(bug: Any) -> None:
    model = network()
    clip = float(np.quantile([norm(gradient(model, ids)[0]) for ids in DATA], 0.5))
    assert difference(bug(model, DATA, clip), looped_sum(model, DATA, clip)) > 1e-2


def test_no_clipped_gradient_is_longer_than_the_clip_norm() -> None:
    model = network()
    for ids in DATA:
        for clip in (1e-3, 0.1, 0.37, 1.0):
            found = clipped_sum(model.eval(), dict(model.named_parameters()), pad([ids]), clip)
            assert norm(found.gradients) <= clip
            assert norm(found.gradients) > clip * (1 - 1e-6) or found.norms[0] < clip


def test_padding_reaches_neither_loss_nor_gradient() -> None:
    model = network().eval()
    parameters = dict(model.named_parameters())
    alone = clipped_sum(model, parameters, pad([DATA[0]]), 1e9)
    batch = pad([DATA[0], DATA[4]])
    padded = batch.take([0])
    assert padded.tokens.shape[1] > len(DATA[0])
    padded.tokens[0, len(DATA[0]) :] = 17
    assert difference(clipped_sum(model, parameters, padded, 1e9).gradients, alone.gradients) < 1e-6


def test_memory_limit_changes_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network().eval()
    parameters = dict(model.named_parameters())
    whole = clipped_sum(model, parameters, pad(DATA), 0.5)
    monkeypatch.setattr(clipped, "CHUNK_BYTES", 3 * 4 * sum(p.numel() for p in parameters.values()))
    parts = clipped_sum(model, parameters, pad(DATA), 0.5)
    assert difference(parts.gradients, whole.gradients) < 1e-6
    assert len(parts.norms) == len(DATA)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.8, 0.0), (0.0, 0.2), (0.8, 0.2)])
def test_steps_are_those_of_the_definition(momentum: float, decay: float) -> None:
    """Eleven examples in batches of four: the last batch has three and is still divided by four."""
    optimizer = Optimizer.MOMENTUM if momentum else Optimizer.SGD
    described = facts(momentum=momentum, weight_decay=decay, optimizer=optimizer)
    trained, expected = network(), network()
    train_clipped(trained, DATA, described, seed=5)
    velocity = {name: torch.zeros_like(p) for name, p in expected.named_parameters()}
    for epoch in range(2):
        order = visiting_order(5, epoch, len(DATA))
        for batch in (order[:4], order[4:8], order[8:]):
            total = looped_sum(expected, [DATA[i] for i in batch], 0.5)
            with torch.no_grad():
                for name, p in expected.named_parameters():
                    velocity[name] = momentum * velocity[name] + total[name] / 4
                    p.copy_((1 - 0.3 * decay) * p - 0.3 * velocity[name])
    moved = float((weights(expected) - weights(network())).norm())
    assert float((weights(trained) - weights(expected)).norm()) < 1e-5 * moved


def test_each_example_is_visited_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    visits: list[list[int]] = []
    take = clipped.Batch.take

    def watched(self: clipped.Batch, indices: Sequence[int]) -> clipped.Batch:
        visits.append(list(indices))
        return take(self, indices)

    monkeypatch.setattr(clipped.Batch, "take", watched)
    steps: list[int] = []
    train_clipped(network(), DATA, facts(epochs=3), seed=1, advance=steps.append)
    assert sum(steps) == len(visits) == facts(epochs=3).total_steps == 9
    epochs = [[i for batch in visits[start : start + 3] for i in batch] for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(len(DATA))) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    seen = list(visits)
    visits.clear()
    other = [[1 + t % 3 for t in ids] for ids in DATA]
    train_clipped(network(seed=9), other, facts(epochs=3), seed=1)
    assert visits == seen, "the order changed with the data"


def test_orders_are_uniform_enough_to_reach_every_place() -> None:
    first = [visiting_order(seed, 0, 5)[0] for seed in range(500)]
    counts = np.bincount(first, minlength=5)
    assert counts.min() > 60
    assert counts.max() < 140


def test_tied_weights_count_once_and_stay_tied() -> None:
    model = network().eval()
    found = clipped_sum(model, dict(model.named_parameters()), pad(DATA[:1]), 1e9)
    single = gradient(model, DATA[0])[0]
    assert found.gradients.keys() == single.keys()
    assert "lm_head.weight" not in found.gradients
    assert float(found.norms[0]) == pytest.approx(norm(single), rel=1e-6)
    train_clipped(model, DATA, facts(), seed=0)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert not torch.equal(model.lm_head.weight, network().lm_head.weight)


def test_a_seed_gives_the_same_run_and_another_seed_another() -> None:
    runs = []
    for seed in (3, 3, 4):
        model = network(embd_pdrop=0.5, resid_pdrop=0.5, attn_pdrop=0.5)
        torch.manual_seed(len(runs))  # dropout, were it on, would differ between the first two
        runs.append((train_clipped(model, DATA, facts(), seed=seed), weights(model)))
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][1], runs[2][1])


def test_epochs_record_loss_and_clipped_fraction() -> None:
    model = network()
    lengths = sorted(norm(gradient(model, ids)[0]) for ids in DATA)
    clip = (lengths[3] + lengths[4]) / 2
    run = train_clipped(model, DATA, facts(epochs=1, clip_norm=clip, learning_rate=1e-9), seed=0)
    assert run.facts.clip_norm == clip
    assert run.epochs[0].clipped_fraction == pytest.approx(7 / 11)
    assert run.epochs[0].loss == pytest.approx(np.mean([gradient(network(), ids)[1] for ids in DATA]), rel=1e-5)
    learnt = train_clipped(network(), DATA, facts(epochs=30), seed=0).epochs
    assert learnt[-1].loss < 0.8 * learnt[0].loss


def test_frozen_parameters_stay() -> None:
    model = network()
    model.transformer.wpe.weight.requires_grad_(False)
    train_clipped(model, DATA, facts(), seed=0)
    assert torch.equal(model.transformer.wpe.weight, network().transformer.wpe.weight)
    assert not torch.equal(model.transformer.ln_f.weight, network().transformer.ln_f.weight)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_gradient_is_an_error(value: float) -> None:
    """The bad row is met by record 6 alone."""
    data = [[t for t in ids if t != 29] + [1] for ids in DATA]
    data[6] = [29, *data[6]]
    model = network(tie_word_embeddings=False)
    found: list[int] = []

    def poison(steps: int) -> None:
        found.append(steps)
        with torch.no_grad():
            model.transformer.wte.weight[29] = value

    steps_before = [3 * epoch + visiting_order(0, epoch, len(data)).index(6) // 4 for epoch in (0, 1)]
    with pytest.raises(InputFault, match=r"record 6 has a loss or gradient that is not finite in epoch [12]"):
        train_clipped(model, data, facts(), seed=0, advance=poison)
    assert len(found) == min(steps for steps in steps_before if steps > 0), "the poison lies from step 1 on"


def test_training_that_diverges_is_an_error() -> None:
    with pytest.raises(InputFault, match="lower --learning-rate"):
        train_clipped(network(), DATA, facts(learning_rate=1e30, epochs=4), seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset_size": 12}, "--dataset-size 12 contradicts the data, which holds 11"),
        ({"optimizer": Optimizer.ADAM}, "--optimizer adam is not trained here"),
        ({"steps": 5}, "--steps 5 would leave records out"),
    ],
)
def test_facts_that_would_not_be_true_are_refused(change: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(UsageFault, match=message):
        train_clipped(model, DATA, facts(**change), seed=0)
    assert torch.equal(weights(model), weights(network()))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[1, 2], [3]], "record 1 has 1 tokens"),
        ([[1, 2], [3, VOCABULARY]], f"token id {VOCABULARY}; the model knows 0 to {VOCABULARY - 1}"),
        ([[1, 2], [3, -1]], "token id -1"),
        ([[1, 2], [3] * 13], "13 tokens; the model reads at most 12"),
    ],
)
def test_records_that_cannot_be_trained_on_are_refused(data: list[list[int]], message: str) -> None:
    with pytest.raises(InputFault, match=message):
        train_clipped(network(), data, facts(dataset_size=2, batch_size=2), seed=0)


def test_models_that_cannot_be_trained_are_refused() -> None:
    with pytest.raises(InputFault, match="load the model as float32"):
        train_clipped(network().to(torch.bfloat16), DATA, facts(), seed=0)
    frozen = network().requires_grad_(False)
    with pytest.raises(InputFault, match="nothing to train"):
        train_clipped(frozen, DATA, facts(), seed=0)
    broken = network()
    with torch.no_grad():
        broken.transformer.ln_f.weight[0] = math.nan
    with pytest.raises(InputFault, match="holds NaN or infinity"):
        train_clipped(broken, DATA, facts(), seed=0)
