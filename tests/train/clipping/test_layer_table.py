"""Torch's own layers, setting by setting, against a loop over examples; and what notices a rule that is wrong."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping, PerExample, embedding, generic, normalisation, recurrent
from privctl.train.clipping.use import ModuleCall
from tests.train.clipping.layer_table import CASES, Case
from tests.train.clipping.support import agree, every_row_agrees, length, run, squared


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


def _in(case: Case, dtype: torch.dtype) -> None:
    batch = {name: x.to(dtype) if x.is_floating_point() else x for name, x in case.batch().items()}
    if case.refused:
        with pytest.raises(InputError, match=case.refused):
            run(case.make().to(dtype), case.losses, batch, 1.0)
        return
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    every_row_agrees(case.make().to(dtype), case.losses, batch, tolerance=tolerance)


@pytest.mark.parametrize("case", [case for case in CASES if case.quick], ids=lambda case: case.name)
def test_the_commonest_settings_in_double_precision(case: Case) -> None:
    _in(case, torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_setting_in_both_precisions(case: Case) -> None:
    for dtype in (torch.float32, torch.float64):
        _in(case, dtype)


def test_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 300


def _wrong_shares(module: nn.EmbeddingBag, ids: Tensor, weights: Tensor) -> Tensor:
    return weights[..., None]


def _of_other_bags(module: nn.EmbeddingBag, use: ModuleCall) -> tuple[Tensor, Tensor]:
    ids, weights = _ROWS(module, use)
    return ids.roll(1, 0), weights


def _no_reset(module: nn.RNNBase, inputs: Tensor, recurred: Tensor, state: Tensor) -> Tensor:
    return _CELL(module, inputs, recurred, state) * 1.01


def _late(module: nn.RNNBase, direction: Any, *rest: Any, backwards: bool) -> Any:
    """The states after each step, not before it."""
    found = _RUN_DIRECTION(module, direction, *rest, backwards=backwards)
    direction.before = direction.before.roll(-1, 1)
    return found


def _unmasked(module: nn.RNNBase, use: ModuleCall) -> Any:
    found = _SEQUENCES(module, use)
    return recurrent._Sequences(inputs=found.inputs, states=found.states, present=None)


def _of_others(module: nn.Module, use: ModuleCall) -> Any:
    turned = tuple(None if g is None else g.roll(1, 0) for g in use.gradients)
    return _GENERIC(module, replace(use, gradients=turned))


_GENERIC, _ROWS, _CELL, _RUN_DIRECTION, _SEQUENCES = (
    generic.generic,
    embedding._rows,
    recurrent._cell,
    recurrent._run_direction,
    recurrent._sequences,
)

_BY_CHANNEL = normalisation._by_channel


def _in_groups(use: ModuleCall, normalize: Any) -> Any:
    return _BY_CHANNEL(use, lambda x: functional.group_norm(x, 3))


PLANTED: dict[str, tuple[str, Any, str, Any]] = {
    "a mean taken for a sum": ("bag of mean, rows, padding 2", embedding, "_shares", _wrong_shares),
    "a maximum taken for a sum": ("bag of max, rows, padding 2", embedding, "_shares", _wrong_shares),
    "the bags of others": ("bag of sum, offsets, padding 2", embedding, "_rows", _of_other_bags),
    "another nonlinearity": ("rnn of relu without bias", recurrent, "_cell", _no_reset),
    "the state after a step": ("gru, 2 layers, both ways, steps first, outputs", recurrent, "_run_direction", _late),
    "steps past the end": ("rnn, 2 layers, both ways, steps first, packed", recurrent, "_sequences", _unmasked),
    "by groups of channels": ("instance norm 2d, affine", normalisation, "_by_channel", _in_groups),
    "the gradients of others": ("attention, all of them, steps first, causal mask", generic, "generic", _of_others),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_wrong_rule_is_noticed_in_the_first_step(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults: without promotion the step is refused; with it, the module above is taken as a whole."""
    name, module, attribute, wrong = PLANTED[fault]
    case = next(case for case in CASES if case.name == name)
    model, batch = case.make(), case.batch()
    run(model, case.losses, batch, 1.0, promote=False)
    monkeypatch.setattr(module, attribute, wrong)
    with pytest.raises(InputError):
        run(model, case.losses, batch, 1.0, promote=False)
    with contextlib.suppress(InputError):  # where there is no other way
        every_row_agrees(model, case.losses, batch, tolerance=1e-3)


def test_frequencies_are_counted_in_each_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: counts over the batch, so that an example's gradient depends on the others."""
    model, x = nn.Embedding(9, 6, scale_grad_by_freq=True), {"x": torch.randint(0, 9, (5, 12))}
    agree(model, squared, x)
    assert model.scale_grad_by_freq
    torch.testing.assert_close(
        embedding.own_frequency(torch.tensor([[3, 3, 1], [1, 1, 1]]))[..., 0], torch.tensor([[2, 2, 1], [3, 3, 3]])
    )
    monkeypatch.setattr(
        "privctl.train.clipping.taps.own_frequency", lambda ids: ids.flatten().bincount()[ids][..., None]
    )
    with pytest.raises(AssertionError):
        agree(model, squared, x)


def test_a_failing_pass_leaves_the_frequency_as_it_was() -> None:
    model = nn.Embedding(9, 6, scale_grad_by_freq=True)
    with PerExample(model, Clipping(norm=1.0)) as engine, pytest.raises(ZeroDivisionError):
        engine.accumulate(lambda: model(torch.zeros(2, 1, dtype=torch.int64)).sum((1, 2)) / (1 // 0))
    assert model.scale_grad_by_freq


class Shared(nn.Module):
    """Has to be taken as a whole, and draws, so that its batch would be run again."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(9, 6, scale_grad_by_freq=True), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.zeros(6, 6).add_(self.scale.weight)  # in place, so that it cannot be copied for each example
        return functional.dropout(functional.linear(self.words(x), weight), 0.5, self.training)


class OwnWords(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


@pytest.mark.parametrize("build", [Shared, lambda: OwnWords(9, 6, scale_grad_by_freq=True)])
def test_counts_over_a_batch_that_is_run_again_are_refused(build: Callable[[], nn.Module]) -> None:
    model = build().train()

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(3)
        return squared(model, batch)

    with pytest.raises(InputError, match="construct that with scale_grad_by_freq=False"):
        run(model, losses, {"x": torch.randint(0, 9, (5, 12))}, 1.0)


@pytest.mark.parametrize("build", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_no_row_tells_whether_it_was_read(build: Any, norm_type: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are bounded alike, so that a look-up finds none to shorten, at any scale of weights."""
    for scale in (1e-3, 1.0, 1e3):
        model = build(50, 33, max_norm=0.7 * scale, norm_type=norm_type)
        model.weight.data.mul_(scale)
        with PerExample(model, Clipping(norm=1.0)) as engine:
            before = model.weight.detach().clone()
            model(torch.arange(50).view(5, 10))
            assert torch.equal(model.weight, before)
            model.weight.data.add_(torch.randn(50, 33), alpha=scale)
            engine.bound_rows()
            before = model.weight.detach().clone()
            engine.bound_rows()
            model(torch.arange(50).view(5, 10))
            assert torch.equal(model.weight, before)
            torch.testing.assert_close(
                before.norm(norm_type, dim=1).max(), torch.tensor(0.7 * scale), rtol=1e-3, atol=0
            )
    monkeypatch.setattr(embedding, "_TOO_LONG", 2.0)  # planted: the long ones are left to look-ups
    PerExample(model, Clipping(norm=1.0)).bound_rows()
    model.weight.data.mul_(1.5)
    before = model.weight.detach().clone()
    model(torch.zeros(1, 1, dtype=torch.int64))
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("first", [True, False])
def test_dropout_between_recurrent_layers_is_drawn_once(kind: Any, first: bool) -> None:
    layer = kind(6, 5, 3, dropout=0.5, bidirectional=True, batch_first=first).train()
    x = torch.randn(4, 7, 6)

    def losses(*_: Any) -> Tensor:
        torch.manual_seed(3)
        output = layer(x if first else x.transpose(0, 1))[0]
        return (output if first else output.transpose(0, 1)).square().sum((1, 2))

    norms = [
        length(dict(enumerate(torch.autograd.grad(losses()[i], list(layer.parameters())))))  # type: ignore[arg-type]
        for i in range(4)
    ]
    with PerExample(_Rows(layer), Clipping(norm=1.0), may_promote=False) as engine:
        model = engine._model
        found = engine.accumulate(lambda: _within(model, losses, x)).norms
    torch.testing.assert_close(found, torch.tensor(norms, dtype=torch.float64), rtol=1e-5, atol=0)


class _Rows(nn.Module):
    """Has its examples first, whatever ``layer`` has."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, losses: Callable[[], Tensor]) -> Tensor:
        return losses()


def _within(model: nn.Module, losses: Callable[[], Tensor], x: Tensor) -> Tensor:
    found: Tensor = model(x, losses)
    return found


def test_packed_sequences_may_be_the_models_own_input() -> None:
    model = nn.LSTM(6, 5)
    lengths = torch.tensor([2, 4, 1])
    x = torch.randn(3, 4, 6)

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        packed = pack_padded_sequence(batch["x"], batch["lengths"], batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(model(packed)[0], batch_first=True)[0].square().sum((1, 2))

    agree(model, losses, {"x": x, "lengths": lengths})


def test_a_recurrent_layer_of_its_own_class_is_right() -> None:
    class Own(nn.LSTM):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)[0]

    agree(Own(6, 5, batch_first=True), squared, {"x": torch.randn(4, 3, 6)})


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_under_autocast(kind: Any) -> None:
    """Which rounds inside some of them, though their outputs are float32."""

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch["x"])[0].float().square().sum((1, 2))

    model, batch = kind(6, 5, batch_first=True), {"x": torch.randn(4, 3, 6)}
    try:
        losses(model, batch)
    except RuntimeError:
        pytest.skip("torch cannot run this layer in bfloat16 on this processor")
    every_row_agrees(model, losses, batch, tolerance=3e-2)


def test_what_cannot_be_made_right_is_refused() -> None:
    for layer, message in (
        (nn.utils.spectral_norm(nn.Linear(6, 6)), "changes its buffers in every forward pass"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), "changes its buffers in every forward pass"),
        (nn.Embedding(9, 6, max_norm=1.0).requires_grad_(False), "shortens the rows it looks up, without noise"),
        (nn.EmbeddingBag(9, 6, scale_grad_by_freq=True), "construct it with scale_grad_by_freq=False"),
    ):
        with pytest.raises(InputError, match=message):
            PerExample(nn.Sequential(layer, nn.Linear(6, 6)), Clipping(norm=1.0))


def test_examples_that_share_a_row_of_a_recurrent_layer_are_refused() -> None:
    class Across(nn.Module):
        """Runs over the examples as if they were steps."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0]

    for places in (4, 5):
        with pytest.raises(InputError, match="mixes them|are mixed"):
            run(Across(), squared, {"x": torch.randn(4, places, 6)}, 1.0)
