"""An LSTM's backward pass through time, written out, against autograd's of torch's own layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from privctl.train.clipping import Clipping, PerExample, measure, promotion
from privctl.train.clipping.lstm import LstmDirection, run_lstm
from tests.train.clipping.support import Batch, agree, every_row_agrees, length, looped, run, squared

ROWS, STEPS, WIDTH = 5, 7, 6


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


class Last(nn.Module):
    """The outputs and last states of an LSTM of words, by ``lengths``, from initial states that are computed."""

    def __init__(self, *, projected: int = 0) -> None:
        super().__init__()
        self.words, self.start = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 8)
        self.lstm = nn.LSTM(WIDTH, 8, 2, bidirectional=True, batch_first=True, proj_size=projected)
        self.projected = projected or 8

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        inputs = self.words(ids)
        cell = self.start(inputs[:, 0]).expand(4, -1, -1).contiguous()
        hidden = torch.tanh(cell[..., : self.projected]).contiguous()
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        outputs, last = self.lstm(packed, (hidden, cell))
        padded = pad_packed_sequence(outputs, batch_first=True, total_length=STEPS)[0].flatten(1)
        return torch.cat([padded, *(state.transpose(0, 1).flatten(1) for state in last)], 1)


def words() -> Batch:
    return {"ids": torch.randint(0, 9, (ROWS, STEPS)), "lengths": torch.tensor([7, 3, 1, 5, 2])}


def losses(model: nn.Module, batch: Batch) -> Tensor:
    output: Tensor = model(batch["ids"], batch["lengths"])
    return (torch.linspace(0.5, 1.5, output.shape[1], dtype=output.dtype) * (output + 0.3) ** 2).sum(1)


@pytest.mark.parametrize("projected", [0, 3])
def test_lengths_states_and_projections_are_those_of_a_loop(projected: int) -> None:
    """Within float64, in which no fault is as small as rounding; a loop is the definition."""
    model = Last(projected=projected).double()
    every_row_agrees(model, losses, words(), tolerance=1e-9)
    for name in ("weight_hh_l0", "bias_ih_l1_reverse"):
        model.get_parameter(f"lstm.{name}").requires_grad_(False)
    every_row_agrees(model, losses, words(), tolerance=1e-9)


@pytest.mark.parametrize("backwards", [False, True])
def test_gradients_of_inputs_are_those_of_autograd(backwards: bool) -> None:
    """By which the layers below it, and the other directions, get theirs."""
    layer = nn.LSTM(WIDTH, 8, batch_first=True).double()
    inputs = torch.randn(ROWS, STEPS, WIDTH, dtype=torch.float64, requires_grad=True)
    hidden, cell = torch.randn(2, ROWS, 8, dtype=torch.float64)
    weights = {name.removesuffix("_l0"): value.detach() for name, value in layer.named_parameters()}
    direction = LstmDirection(weights=weights, present=None, backwards=backwards)
    gates = torch.zeros(ROWS, STEPS, 32, dtype=torch.float64, requires_grad=True)
    found = run_lstm(direction, inputs, gates, gates[..., :0], (hidden, cell))
    given = inputs.flip(1) if backwards else inputs
    outputs, last = layer(given, (hidden[None], cell[None]))
    outputs = outputs.flip(1) if backwards else outputs
    torch.testing.assert_close(found[:3], (outputs, *(state[0] for state in last)))
    by = [torch.randn_like(each) for each in found[:3]]
    torch.testing.assert_close(
        torch.autograd.grad(found[:3], inputs, by),
        torch.autograd.grad((outputs, *(state[0] for state in last)), inputs, by),
    )


def test_both_weights_share_a_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the gradients, which are the same for both."""
    layer, x = nn.LSTM(64, 64, batch_first=True), torch.randn(ROWS, STEPS, 64)
    calls = []
    original = measure.squares_of_groups

    def noting(groups: list[tuple[Tensor, list[Tensor]]]) -> list[list[measure.Squares]]:
        calls.extend(len(others) for _, others in groups)
        return original(groups)

    monkeypatch.setattr(measure, "squares_of_groups", noting)
    agree(Outputs(layer), squared, {"x": x})
    assert set(calls) == {2}


class Outputs(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def test_a_planted_fault_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forget gate whose slope is left out."""
    from privctl.train.clipping import lstm

    original = lstm._slopes

    def forgetting(gates: Tensor, activated: Tensor, cells_before: Tensor) -> Tensor:
        return original(gates, activated, torch.zeros_like(cells_before))

    monkeypatch.setattr(lstm, "_slopes", forgetting)
    model = Outputs(nn.LSTM(WIDTH, 8, batch_first=True))
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(model, {"x": torch.randn(ROWS, STEPS, WIDTH)}))
        assert [each.module for each in engine.promoted], "the rule was used although it is wrong"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_gates_are_computed_at_once_where_the_outputs_are_known(
    first: bool, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if they are changed afterwards."""
    from privctl.train.clipping import lstm

    calls: list[bool] = []
    original = lstm._cells
    monkeypatch.setattr(lstm, "_cells", lambda *rest: (calls.append(True), original(*rest))[1])

    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(WIDTH, 8, layers, bidirectional=True, batch_first=first).double()

        def forward(self, x: Tensor) -> Tensor:
            output = self.layer(x if first else x.transpose(0, 1))[0]
            return (output if first else output.transpose(0, 1)).mul_(2.0).add_(1.0)

    x = torch.randn(ROWS, STEPS, WIDTH, dtype=torch.float64)
    every_row_agrees(Changed(), squared, {"x": x}, tolerance=1e-9)
    assert len(calls) == 2 * 2  # both ways, in two steps


def test_a_promoted_one_is_run_again_as_it_was_called() -> None:
    model, x = Outputs(nn.LSTM(WIDTH, 8, batch_first=True)), {"x": torch.randn(ROWS, STEPS, WIDTH)}
    whole = promotion.Promotion(module="layer", kind="LSTM", reason="")
    expected = [length(each) for each in looped(model, squared, x)]
    with PerExample(model, Clipping(norm=1.0), [whole], may_promote=False) as engine:
        norms = engine.accumulate(lambda: squared(model, x)).norms
    torch.testing.assert_close(norms, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=0)


def test_micro_batches_add_up() -> None:
    model, x = Outputs(nn.LSTM(WIDTH, 8, batch_first=True)), torch.randn(ROWS, STEPS, WIDTH)
    whole, _ = run(model, squared, {"x": x}, 1.0)
    with PerExample(model, Clipping(norm=1.0)) as engine:
        for part in x.split(2):
            engine.accumulate(lambda part=part: squared(model, {"x": part}))
        for name, parameter in engine.trainable.items():
            torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-4, atol=1e-6)
