"""Bytes that each of several processes holds at the peak of a private step with ``--fsdp``; run in each of them.

``python -m tests.bench memory`` holds what is computed for cards against it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from privctl.parallel import start_workers
from privctl.train.network.sharding import shard
from privctl.train.network.tensor_bytes import TensorBytes, bytes_of
from privctl.train.steps.holding import holding
from tests.bench.memory_counted import Llama, build, private_step

if TYPE_CHECKING:
    from privctl.parallel import Workers

CPU = torch.device("cpu")


def held(
    size: Llama, bits: int | None, recomputed: bool, examples: int, positions: int, workers: Workers
) -> dict[str, int]:
    """The bytes of shards, and the most that was held beside them in a step and its update."""
    torch.manual_seed(0)
    network = build(size, size.layers, bits, recomputed=recomputed)
    shard(network, workers, CPU)
    hold = holding(network, workers)
    optimizer = torch.optim.AdamW(hold.optimized, fused=True)
    counted = TensorBytes()
    with private_step(network, examples, positions, bf16=False) as micro_batch:
        counted.start()
        try:
            for _ in range(2):  # the first also compares with autograd, and makes the moments
                counted.reset_peak()
                hold.forget()
                micro_batch()
                micro_batch()
                hold.combine(None)
                optimizer.step()
        finally:
            counted.stop()
    return {"shards": bytes_of(network), "most": counted.most}


def main(place: str, numbers: str) -> None:
    """Write what this process held at ``place``, of the model and the step that ``numbers`` state."""
    torch.set_num_threads(1)
    asked = json.loads(numbers)
    size = Llama(**asked.pop("size"))
    with start_workers(CPU) as workers:
        found = held(size, workers=workers, **asked)
        Path(f"{place}-{workers.rank}").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
