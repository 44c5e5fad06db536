"""Code that selects or sorts rows by their content, in a later batch otherwise than in the compared one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import privctl
from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping, PerExample, engine
from privctl.train.clipping.rerun import Mode
from tests.train.clipping.support import Batch, length, looped

ROWS, STEPS, WIDTH = 5, 6, 8
EQUAL = [4] * ROWS


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


class SortedRows(nn.Module):
    """Sorts its rows by length and puts them back, which changes nothing where all are equally long."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.cells, self.after = (
            nn.Linear(3, WIDTH),
            nn.GRU(WIDTH, WIDTH, batch_first=True),
            nn.Linear(8, 2),
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        order = torch.argsort(lengths, descending=True, stable=True)
        packed = pack_padded_sequence(self.before(x)[order], lengths[order], batch_first=True)
        return self.after(self.cells(packed)[1][0])[torch.argsort(order)]


class Selected(nn.Module):
    """Computes only the positions that count, whose numbers may be those of other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        counts = torch.arange(x.shape[1]) < lengths[:, None] - 3
        rows = counts.nonzero()[:, 0]
        return torch.zeros(len(x), 2).index_add(0, rows, self.after(torch.tanh(self.before(x)[counts])))


class PackedRows(nn.Module):
    """A layer on the steps of packed sequences, one step of all rows after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, (lengths - 3).clamp(min=1), batch_first=True, enforce_sorted=False)
        outputs = packed._replace(data=torch.tanh(self.before(packed.data)))
        return self.after(pad_packed_sequence(outputs, batch_first=True)[0].sum(1))


class Unsorted(SortedRows):
    """Lets torch sort the rows, which the rule of recurrent layers knows."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.before(x), lengths, batch_first=True, enforce_sorted=False)
        return self.after(self.cells(packed)[1][0])


def losses(model: nn.Module, batch: Batch) -> Tensor:
    found: Tensor = 30 * functional.cross_entropy(model(batch["x"], batch["lengths"]), batch["y"], reduction="none")
    return found


def batch(lengths: list[int]) -> Batch:
    rows = len(lengths)
    return {"x": torch.randn(rows, STEPS, 3), "lengths": torch.tensor(lengths), "y": torch.arange(rows) % 2}


@pytest.mark.parametrize(
    ("kind", "lengths", "mode"),
    [
        (SortedRows, [2, 6, 3, 4, 4], Mode.ALONE),
        (Selected, [3, 6, 4, 4, 3], Mode.ALONE),
        (PackedRows, [4, 6, 5, 5, 5], Mode.ALONE),
        (Unsorted, [2, 6, 3, 4, 4], None),
    ],
)
def test_norms_are_those_of_each_example_alone(kind: type[nn.Module], lengths: list[int], mode: Mode | None) -> None:
    model, later = kind(), batch(lengths)
    with PerExample(model, Clipping(norm=1.0), each_pass=True) as engine:
        engine.accumulate(lambda: losses(model, batch(EQUAL)))
        found = engine.accumulate(lambda: losses(model, later))
        assert [each.mode for each in engine.promoted] == ([] if mode is None else [mode])
    alone = torch.tensor([length(gradients) for gradients in looped(model, losses, later)])
    torch.testing.assert_close(found.norms.float(), alone, rtol=1e-4, atol=1e-5)


def test_rows_that_cannot_be_told_apart_end_the_training() -> None:
    class Logits(Selected):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return self.after(torch.tanh(self.before(x)[torch.arange(STEPS) < lengths[:, None] - 3]))

    def of_selected(model: nn.Module, batch: Batch) -> Tensor:
        lengths = batch["lengths"] - 3
        each = functional.cross_entropy(
            model(batch["x"], batch["lengths"]), batch["y"].repeat_interleave(lengths), reduction="none"
        )
        return torch.zeros(len(lengths)).index_add(0, torch.arange(ROWS).repeat_interleave(lengths), each)

    model = Logits()
    with PerExample(model, Clipping(norm=1.0), each_pass=True) as engine:
        engine.accumulate(lambda: of_selected(model, batch(EQUAL)))
        with pytest.raises(InputError, match="affect the loss of another example"):
            engine.accumulate(lambda: of_selected(model, batch([3, 4, 5, 4, 4])))


def test_ones_own_loop_is_checked_in_each_pass() -> None:
    """One longer record moves all others; without the check their gradients would be clipped with parts of others'."""
    model, rows = SortedRows(), 40
    lengths = torch.full((rows,), 4)
    data = torch.utils.data.TensorDataset(torch.randn(rows, STEPS, 3), lengths, torch.arange(rows) % 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    private = privctl.make_private(
        model, optimizer, torch.utils.data.DataLoader(data, batch_size=rows), noise_multiplier=1.0
    )
    for more in (0, 1):
        for x, known, y in private.loader:
            given = {"x": x, "lengths": known + more * (torch.arange(len(known)) == len(known) - 1), "y": y}
            clipped = private.backward(lambda given=given: losses(model, given))
            optimizer.step()
    alone = torch.tensor([length(gradients) for gradients in looped(model, losses, given)])
    torch.testing.assert_close(clipped.norms.float(), alone, rtol=1e-4, atol=1e-5)


def test_of_trusted_code_only_new_operations_are_checked() -> None:
    ownership, x = engine.Ownership(enabled=True, trusted=True), torch.ones(3, 2, requires_grad=True)
    assert ownership.wanted(x.flip(0).sum(1), compared=False)
    assert not ownership.wanted(x.flip(0).sum(1), compared=False)
    assert ownership.wanted(x.flip(0).sum(1), compared=True)
    assert ownership.wanted(x.flip(0).tanh().sum(1), compared=False)


def test_weights_of_many_examples_differ_and_scale_exactly() -> None:
    ownership = engine.Ownership(enabled=True)
    weights = ownership._weights_for(200, 60)
    assert len(set(weights.tolist())) == 200
    mantissas = torch.frexp(weights).mantissa
    assert set(mantissas.abs().tolist()) == {0.5}


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    ("moves", "kept"),
    [
        (lambda h: h, True),
        (lambda h: h.transpose(1, 2).softmax(-1).transpose(1, 2), True),
        (lambda h: h.reshape(-1, WIDTH).tanh().view(ROWS, STEPS, WIDTH), True),
        (lambda h: h.reshape(-1, WIDTH).split(3, -1)[0].view(ROWS, STEPS, 3), True),
        (lambda h: torch.einsum("nsd,ntd->nst", h, h), True),
        (lambda h: functional.scaled_dot_product_attention(*[h[:, None]] * 3)[:, 0], True),
        (lambda h: functional.layer_norm(h, (WIDTH,)) + h.amax(1, keepdim=True), True),
        (lambda h: h[torch.arange(ROWS), torch.arange(ROWS)][:, None], True),
        (lambda h: functional.conv1d(h.transpose(1, 2), torch.ones(2, WIDTH, 3)), True),
        (lambda h: torch.cat([h, h[:, :1]], 1).cumsum(1), True),
        (lambda h: h[torch.arange(ROWS).flip(0)], False),
        (lambda h: h[[0, 1, 2, 4, 3]], False),
        (lambda h: h.flip(0), False),
        (lambda h: h - h.mean(0), False),
        (lambda h: h.softmax(0), False),
        (lambda h: h.cumsum(0), False),
        (lambda h: h.roll(1, 0), False),
        (lambda h: torch.cat([h[1:], h[:1]]), False),
        (lambda h: torch.stack(h.unbind()[::-1]), False),
        (lambda h: h.index_select(0, torch.tensor([1, 0, 2, 3, 4])), False),
        (lambda h: torch.eye(ROWS).flip(0) @ h.flatten(1), False),
        (lambda h: torch.einsum("nm,mtd->ntd", torch.ones(ROWS, ROWS), h), False),
        (lambda h: h[:, :ROWS].transpose(0, 1), False),
        (lambda h: (h[:, None] - h[None]).sum(1), False),
        (lambda h: functional.layer_norm(h, (ROWS, STEPS, WIDTH)), False),
        (lambda h: functional.batch_norm(h.transpose(1, 2), None, None, training=True), False),
        (lambda h: h[:, 0] + h.sum((0, 1)), False),
        (lambda h: h.flatten(1).mT.reshape(ROWS, -1), False),
        (lambda h: torch.gather(h, 0, torch.zeros(ROWS, STEPS, WIDTH, dtype=torch.long)), False),
    ],
)
def test_only_what_leaves_rows_in_place_is_proved(moves: Callable[[Tensor], Tensor], kept: bool, reduced: bool) -> None:
    """And what is proved is true: the gradient of a row's loss is zero in all others."""
    x = torch.randn(ROWS, STEPS, WIDTH, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
        found = moves(functional.linear(x * 1.0, torch.randn(WIDTH, WIDTH))).float().flatten(1).square().sum(1)
    assert engine.keeps_blocks(found) is kept
    of_others = [torch.autograd.grad(found[i], x, retain_graph=True)[0] for i in range(ROWS)]
    mixed = any(bool(of_others[i][j].any()) for i in range(ROWS) for j in range(ROWS) if i != j)
    assert mixed is not kept
