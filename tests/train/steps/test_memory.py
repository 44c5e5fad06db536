"""A run that is short of memory takes less at once: of the same records, with the same noise, in the same ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.parallel import is_out_of_memory
from privctl.randomness import NoiseSource
from privctl.train.clipping import linear
from privctl.train.steps.loop import Trainer
from privctl.train.steps.sampling import PoissonBatches
from tests.train.steps.test_loop import Points, recipe, trainer, weight

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(3)) * 4
#: What torch raises on a GPU, and what on a CPU.
SHORTAGES: list[Exception] = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
]


class Tight(Points):
    """Holds up to ``most`` rows at once; counts passes that were begun."""

    def __init__(self, most: int, shortage: Exception) -> None:
        super().__init__(ROWS)
        self.most, self.shortage, self.passes = most, shortage, 0

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        self.passes += 1
        if len(batch["rows"]) > self.most:
            raise self.shortage
        return super().losses(network, batch)


def private(**changes: Any) -> Trainer:
    plan = recipe(method="dp-sgd", steps=4, noise_multiplier=0.5, batch_size=20.0, sample_rate=0.5, learning_rate=1.0)
    return trainer(ROWS, plan, PoissonBatches(40, 0.5, NoiseSource(4)), **changes)


def test_the_error_of_every_device_is_known() -> None:
    assert all(map(is_out_of_memory, SHORTAGES))
    assert not any(map(is_out_of_memory, [RuntimeError("shape mismatch"), ValueError("can't allocate memory")]))


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_less_at_once_gives_the_same_weights(shortage: Exception) -> None:
    enough, messages = private(), list[str]()
    whole = enough.run()
    task = Tight(5, shortage)
    short = private(task=task, notify=messages.append)
    done = short.run()
    assert torch.allclose(weight(short), weight(enough), atol=1e-6)
    assert (done.steps_begun, done.released) == (whole.steps_begun, whole.released) == (4, 12)
    for entry, expected in zip(done.history, whole.history, strict=True):  # no example is counted twice
        assert entry == pytest.approx(expected, rel=1e-5)
    assert [line.count("ran out") for line in messages] == [1] * len(messages)
    assert 1 <= len(messages) <= 3
    assert "--micro-examples" in messages[-1]


def test_what_a_failed_pass_had_added_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may run out when some of a batch's gradients are added already."""
    enough = private()
    enough.run()
    calls, add_weighted = list[int](), linear.Outer.add_weighted

    def failing(term: Any, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        total = add_weighted(term, total, factors, fresh=fresh)
        calls.append(len(factors))
        if len(calls) == 4:
            raise SHORTAGES[0]
        return total

    network = nn.Sequential(nn.Linear(3, 1, bias=False))
    nn.init.zeros_(network[0].weight)
    monkeypatch.setattr(linear, "forming_is_cheaper", lambda *_: False)
    monkeypatch.setattr(linear.Outer, "add_weighted", failing)
    short = private(network=network)
    short.run()
    assert len(calls) > 4
    assert torch.allclose(network[0].weight[0], weight(enough), atol=1e-6)


def test_one_record_too_many_is_said() -> None:
    with pytest.raises(InputError, match="does not hold one record; add --checkpointing with --clipping-passes 2, or"):
        private(task=Tight(0, SHORTAGES[0]), may_pass_twice=True).run()


def test_other_errors_are_not_taken_for_it() -> None:
    with pytest.raises(RuntimeError, match="shape mismatch"):
        private(task=Tight(0, RuntimeError("shape mismatch"))).run()
