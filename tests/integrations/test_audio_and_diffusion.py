"""Private steps on audio and on a diffusion network, whose losses are per example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC, Wav2Vec2ForSequenceClassification

import privctl
from privctl.domain.errors import InputError
from tests.train.clipping.support import length

EXAMPLES, BATCH, SAMPLES = 12, 6, 400

Batch = tuple[Tensor, ...]
Losses = Callable[[Batch], Tensor]


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


def _audio(**more: Any) -> Wav2Vec2Config:
    """Tiny, with nothing drawn at random, so that a loop sees the same network."""
    still = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
    return Wav2Vec2Config(
        vocab_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        conv_dim=(8, 8, 8), conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, classifier_proj_size=8, layerdrop=0.0, apply_spec_augment=False,
        **dict.fromkeys(still, 0.0), **more,
    )  # fmt: skip


def _steps(model: nn.Module, losses: Losses, batches: list[Tensor]) -> None:
    """Two steps; the norms of the rows are those of a loop, and every parameter is trained."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(*batches), batch_size=BATCH)
    private = privctl.make_private(model, optimizer, loader, noise_multiplier=1.0, clip_norm=0.5)
    parameters = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    rows = 0
    for batch in private.loader:
        expected = []
        for i in range(len(batch[0])):
            loss = losses(tuple(each[i : i + 1] for each in batch))[0]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            expected.append(length(dict(enumerate(gradients))))  # type: ignore[arg-type]
        found = private.backward(lambda batch=batch: losses(tuple(batch)))
        optimizer.step()
        torch.testing.assert_close(found.norms, torch.tensor(expected, dtype=torch.float64), rtol=1e-3, atol=1e-6)
        rows += len(expected)
    private.close()
    assert rows > 0
    assert not any(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))


def test_speech_recognition_with_a_loss_of_alignments() -> None:
    model = Wav2Vec2ForCTC(_audio(pad_token_id=0))

    def losses(batch: Batch) -> Tensor:
        chances = model(batch[0]).logits.log_softmax(-1).transpose(0, 1)
        steps = torch.full((len(batch[0]),), len(chances))
        return F.ctc_loss(chances, batch[1], steps, batch[2], reduction="none")

    _steps(
        model,
        losses,
        [torch.randn(EXAMPLES, SAMPLES), torch.randint(1, 8, (EXAMPLES, 4)), torch.randint(1, 5, (EXAMPLES,))],
    )


@pytest.mark.parametrize("norm", ["layer", pytest.param("group", marks=pytest.mark.slow)])
def test_audio_classification(norm: str) -> None:
    model = Wav2Vec2ForSequenceClassification(
        _audio(num_labels=3, feat_extract_norm=norm, do_stable_layer_norm=norm == "layer")
    )

    def losses(batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]).logits, batch[1], reduction="none")

    _steps(model, losses, [torch.randn(EXAMPLES, SAMPLES), torch.randint(0, 3, (EXAMPLES,))])


class Block(nn.Module):
    """Convolutions around what a step's number adds to the channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(2, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.step = nn.Linear(8, outputs)
        self.second = nn.Sequential(nn.GroupNorm(2, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.past = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        hidden = self.first(x) + self.step(step)[:, :, None, None]
        return self.second(hidden) + self.past(x)


class Denoiser(nn.Module):
    """A network in the form of a U: down, attention over pixels, and up again beside what was there."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
        self.step = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.SiLU())
        self.down, self.halve = Block(4, 8), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.middle = Block(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.widen, self.up = nn.ConvTranspose2d(8, 8, 2, stride=2), Block(16, 4)

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        step = self.step(number)
        beside = self.down(self.enter(x), step)
        low = self.middle(self.halve(beside), step)
        pixels = low.flatten(2).permute((0, 2, 1) if self.attention.batch_first else (2, 0, 1))
        attended = self.attention(pixels, pixels, pixels, need_weights=False)[0]
        low = low + (attended.mT if self.attention.batch_first else attended.permute(1, 2, 0)).view_as(low)
        return self.leave(self.up(torch.cat([self.widen(low), beside], 1), step))


@pytest.mark.parametrize("batch_first", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_denoiser_trains_as_without_private_steps(batch_first: bool) -> None:
    """Each example has its own step and its own noise, as part of the data here, so that a loop sees the same."""
    model = Denoiser(batch_first=batch_first)

    def losses(batch: Batch) -> Tensor:
        images, number, noise = batch
        kept = torch.linspace(0.95, 0.1, 10)[number][:, None, None, None]
        return (model(kept.sqrt() * images + (1 - kept).sqrt() * noise, number) - noise).square().mean((1, 2, 3))

    shape = (EXAMPLES, 1, 8, 8)
    _steps(model, losses, [torch.randn(shape), torch.randint(0, 10, (EXAMPLES,)), torch.randn(shape)])


def test_an_average_over_the_batch_inside_a_network_is_refused() -> None:
    """As with batch normalization, which diffusion networks of older times have."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 3))
    loader = DataLoader(TensorDataset(torch.randn(EXAMPLES, 1, 8, 8)), batch_size=BATCH)
    with pytest.raises(InputError, match="normalizes each example by the others of its batch"):
        privctl.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, noise_multiplier=1.0)


def test_recurrent_networks_and_bags() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20, 6, max_norm=1.0)
            self.bag = nn.EmbeddingBag(20, 6, mode="mean")
            self.layer, self.out = nn.LSTM(6, 5, 2, bidirectional=True), nn.Linear(16, 3)

        def forward(self, ids: Tensor) -> Tensor:
            states = self.layer(self.words(ids).transpose(0, 1))[0]
            return self.out(torch.cat([states[-1], self.bag(ids)], 1))

    model = Tagger()
    _steps(
        model,
        lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        [torch.randint(0, 20, (EXAMPLES, 7)), torch.randint(0, 3, (EXAMPLES,))],
    )
    before = model.words.weight.detach().clone()
    model(torch.arange(20)[None])  # finds no row too long, so none tells that it was read
    assert torch.equal(model.words.weight, before)
