"""Two processes make the update of one: the same weights without noise, noise of one variance with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.forked import Forked

#: What each process runs: a linear model on fixed rows; prints the leading process's weights after each step, and what
#: it measured. The last process is interrupted in the step that is given last, if any.
SCRIPT = """
import json, sys, torch
from pathlib import Path
from torch import nn
from privctl.domain.errors import RunInterruptedError
from privctl.randomness import NoiseSource
from privctl.train.steps.sampling import Passes, PoissonBatches
from privctl.train.steps.loop import Trainer
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.parallel import start_workers
from privctl.train.clipping.factors import Clipping
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state.run_folder import RunFolder
from privctl.domain.mechanism import Optimizer
from tests.train.steps.test_loop import Points

torch.set_num_threads(1)
private, steps, stop = sys.argv[1] == "private", int(sys.argv[2]), int(sys.argv[3])
width = int(sys.argv[5])
rows = torch.randn(15, width, generator=torch.Generator().manual_seed(0)) * 3
recipe = TrainingSettings(method="dp-sgd" if private else "clipped", steps=steps, batch_size=8.0, sample_rate=0.5,
    learning_rate=0.1, optimizer=Optimizer.SGD, noise_multiplier=2.0 if private else 0.0)
device = torch.device("cpu")

def measure(network, workers):
    parts = workers.spread(range(7), lambda i: network(rows[i:i + 1 + i % 3]).detach(), 1)
    assert [len(part) for part in parts] == [1 + i % 3 for i in range(7)]
    return float(torch.cat(parts).double().square().sum())

with start_workers(device) as workers:
    network = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(network.weight)
    made = Trainer(network=network, task=Points(rows), recipe=recipe, clipping=Clipping(norm=1.0),
        batches=PoissonBatches(15, 0.0, NoiseSource(1)) if private else Passes(15, 8, seed=0),
        noise=KeyedNoise(NoiseSource()) if private else None, workers=workers, device=device,
        evaluate=lambda network: {"held_out": measure(network, workers)})
    trail = []
    made.advance = lambda _: trail.append(network.weight.detach()[0].tolist())
    path, start = Path(sys.argv[4]), None
    begun = path.exists()
    workers.barrier()
    if begun:
        made.folder, start = RunFolder.resume(path, {})
        made.folder = made.folder if workers.is_main else None
        workers.barrier()
    elif workers.is_main:
        made.folder = RunFolder.begin(path, {})
    history = []
    try:
        history = made.run(start, lambda: workers.rank == workers.size - 1 and len(trail) + 1 == stop).history
    except RunInterruptedError as error:
        assert ("was saved" in str(error)) is workers.is_main, str(error)
    same = network.weight.detach().clone()
    workers.all_reduce([same])
    assert torch.allclose(same, workers.size * network.weight, atol=1e-6), "the processes' weights differ"
    if workers.is_main:
        print(json.dumps([trail, list(history)]), flush=True)
"""


SPREAD = """
import json, torch
from privctl.parallel import start_workers

def compute(i):
    return torch.tensor([[10 * i + j, i] for j in range(i % 3)], dtype=torch.int64).view(-1, 2)

with start_workers(torch.device("cpu")) as workers:
    found = [part.tolist() for part in workers.spread(range(5), compute, 2)]
    found.append(torch.cat([torch.empty(0), *workers.spread([], compute, 2)]).tolist())  # none at all
    alone = workers.spread([0.5], lambda x: torch.tensor([[x, 0.1]], dtype=torch.float64), 2)  # fewer than processes
    print(json.dumps([*found, alone[0].tolist()]), flush=True)
"""


Run = tuple[torch.Tensor, list[dict[str, float]]]
Train = Callable[..., Run]


@pytest.fixture
def train(tmp_path: Path, forked: Forked) -> Train:
    """Weights (steps, width) and history; the run goes on where one with as many processes left off."""
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)

    def call(processes: int, method: str, steps: int, name: str = "run", stop: int = 0, width: int = 3) -> Run:
        arguments = [method, str(steps), str(stop), str(tmp_path / f"{name}-{processes}"), str(width)]
        found = forked.together(processes, arguments, script=str(script))
        for each in found:
            assert each.code == 0, each.errors[-2000:]
        trail, history = json.loads(found[0].out)
        return torch.tensor(trail), history

    return call


def test_two_processes_make_the_weights_of_one(train: Train) -> None:
    (one, measured), (two, together) = (train(n, "clipped", 6) for n in (1, 2))
    assert torch.allclose(one, two, atol=1e-5)
    assert float(one[-1].norm()) > 0.01
    # Statements about the examples hold for all of them, however many each process saw.
    assert [entry["step"] for entry in measured] == [2, 4, 6]
    for whole, joined in zip(measured, together, strict=True):
        assert joined == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_item_comes_back_in_order(processes: int, tmp_path: Path, forked: Forked) -> None:
    script = tmp_path / "worker.py"
    script.write_text(SPREAD)
    for process in forked.together(processes, [], script=str(script)):
        assert process.code == 0, process.errors[-2000:]
        assert json.loads(process.out) == [[[10 * i + j, i] for j in range(i % 3)] for i in range(5)] + [
            [],
            [[0.5, 0.1]],
        ]


def test_an_interrupt_of_one_process_ends_all_in_the_same_step(train: Train) -> None:
    whole, measured = train(2, "clipped", 6, "whole")
    first, _ = train(2, "clipped", 6, stop=3)
    rest, together = train(2, "clipped", 6)
    assert (len(first), len(rest)) == (2, 3)  # the third was made, and saved, by who did not live to tell
    assert torch.equal(torch.cat([first, rest]), whole[[0, 1, 3, 4, 5]])
    assert [entry["step"] for entry in together] == [2, 4, 6]
    for entire, joined in zip(measured, together, strict=True):
        assert joined == pytest.approx(entire, rel=1e-9)


def test_two_processes_add_the_noise_of_one(train: Train) -> None:
    trail, _ = train(2, "private", 40, width=31)
    moves = trail.diff(dim=0)
    stated = 2.0 * 1.0 / 8 * 0.1
    error = stated / math.sqrt(2 * moves.numel())
    deviation = float(moves.double().std())
    assert abs(deviation - stated) < 5 * error
    # Noise from every process would be sqrt(2) times that, 20 standard errors away.
    assert abs(deviation - stated * math.sqrt(2)) > 12 * error


@pytest.mark.parametrize("size", ["zero", "0", "-1"])
def test_a_size_that_is_none(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from privctl.domain.errors import CommandError
    from privctl.parallel import start_workers

    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(CommandError, match="torchrun"), start_workers(torch.device("cpu")):
        pass
