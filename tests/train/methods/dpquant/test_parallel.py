"""Two processes measure what one does, with noise once, choose the same layers and make the same weights."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

#: What each process runs; the leading one prints weights, scores and layers.
SCRIPT = """
import json, os, sys, torch
from privctl.parallel import start_workers
from tests.train.methods.dpquant.test_quantization import made, precision, weights

torch.set_num_threads(1)
with start_workers(torch.device("cpu")) as workers:
    run = made(workers=workers)
    run.run()
    mine = torch.cat([p.flatten() for p in weights(run)])
    same = mine.clone()
    workers.all_reduce([same])
    assert torch.allclose(same, workers.size * mine, atol=1e-12), "the processes' weights differ"
    if workers.is_main:
        epochs = precision(run).epochs
        layers = [sorted(e.quantized) for e in epochs]
        print(json.dumps([mine.tolist(), [e.scores for e in epochs], layers]), flush=True)
# Threads of the communication library sometimes abort a process that ends the usual way, after all is done.
sys.stdout.flush()
os._exit(0)
"""


def train(processes: int, folder: Path) -> list[Any]:
    """What the leading process prints."""
    script = folder / "worker.py"
    script.write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    running = []
    for rank in range(processes):
        environment = {
            **os.environ, "WORLD_SIZE": str(processes), "RANK": str(rank), "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(Path(__file__).resolve().parents[4]),
        }  # fmt: skip
        running.append(
            subprocess.Popen(
                [sys.executable, str(script)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=300) for process in running]
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors[-2000:]
    found: list[Any] = json.loads(outputs[0][0])
    return found


def test_two_processes_are_as_one(tmp_path: Path) -> None:
    one, two = (train(processes, tmp_path) for processes in (1, 2))
    assert one[2] == two[2]
    assert torch.allclose(torch.tensor(one[1]), torch.tensor(two[1]), atol=1e-9)
    assert torch.tensor(one[0]) == pytest.approx(torch.tensor(two[0]), abs=1e-6)
