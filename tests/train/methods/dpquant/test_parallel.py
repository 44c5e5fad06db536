"""Two processes measure what one does, with noise once, choose the same layers and make the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forked import Forked

#: What each process runs; the leading one prints weights, scores and layers.
SCRIPT = """
import json, torch
from privctl.parallel import start_workers
from tests.train.methods.dpquant.test_quantization import dpquant_trainer, precision, weights

torch.set_num_threads(1)
with start_workers(torch.device("cpu")) as workers:
    run = dpquant_trainer(workers=workers)
    run.run()
    mine = torch.cat([p.flatten() for p in weights(run)])
    same = mine.clone()
    workers.all_reduce([same])
    assert torch.allclose(same, workers.size * mine, atol=1e-12), "the processes' weights differ"
    if workers.is_main:
        epochs = precision(run).epochs
        layers = [sorted(e.quantized) for e in epochs]
        print(json.dumps([mine.tolist(), [e.scores for e in epochs], layers]), flush=True)
"""


def train(processes: int, folder: Path, forked: Forked) -> list[Any]:
    """What the leading process prints."""
    script = folder / "worker.py"
    script.write_text(SCRIPT)
    ended = forked.together(processes, [], script=str(script))
    for process in ended:
        assert process.code == 0, process.errors[-2000:]
    found: list[Any] = json.loads(ended[0].out)
    return found


def test_two_processes_are_as_one(tmp_path: Path, forked: Forked) -> None:
    one, two = (train(processes, tmp_path, forked) for processes in (1, 2))
    assert one[2] == two[2]
    assert torch.allclose(torch.tensor(one[1]), torch.tensor(two[1]), atol=1e-9)
    assert torch.tensor(one[0]) == pytest.approx(torch.tensor(two[0]), abs=1e-6)
