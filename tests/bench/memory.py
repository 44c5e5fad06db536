"""What fits where: memory of private trainings of large models, by exact bytes of tensors, and what they cost.

The counting is checked on small models, whose peak on this machine is measured. Costs are computed from the number of
operations and a GPU's data sheet, and measured nowhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.common import count_what_is_held, forget_peak, forked, publish, save, status_mib

if TYPE_CHECKING:
    from tests.bench.memory_counted import Llama

MICRO = (1, 4, 16)
CARDS = 8
#: An H100's, SXM: bfloat16 operations a second without sparsity, and bytes of memory a second (NVIDIA, data sheet).
FLOPS, BYTES = 989e12, 3.35e12
#: The share of ``FLOPS`` that trainings of this kind are taken to reach.
REACHED = 0.4
#: Bytes that noise and AdamW read and write for each trained number in a step.
_UPDATED = 36

Result = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--positions", type=int, default=1024, help="tokens of a record (default: 1024)")
    parser.add_argument("--size", action="append", help="only these of 1B, 3B, 7B, 13B and 70B; repeatable")
    parser.add_argument("--examples", type=int, action="append", help="records of a micro-batch; default: 1, 4 and 16")


def main(options: argparse.Namespace) -> None:
    """Count, check and publish."""
    checked = checks()
    from tests.bench.memory_counted import RANK, SIZES, WAYS, needs

    data: Result = {
        "positions": options.positions, "cards": CARDS, "rank": RANK, "checks": checked, "trainings": [],
        "shard_checks": shard_checks(),
        "costs": {"flops": FLOPS, "bytes_per_s": BYTES, "reached": REACHED, "models": costs(options.positions)},
    }  # fmt: skip
    asked = options.examples or MICRO
    for name in options.size or SIZES:
        for (variant, bits), recomputed in itertools.product(WAYS.items(), (False, True)):
            found = needs(SIZES[name], bits, examples=asked, positions=options.positions, recomputed=recomputed)
            for examples, one in zip(asked, found, strict=True):
                data["trainings"].append({
                    "size": name, "way": variant, "checkpointed": recomputed, "examples": examples,
                    "weights": one.weights, "trained": one.trained, "micro_batch": one.micro, "one_card": one.total,
                    "each_of_cards": one.shared(CARDS) if bits in (None, 16) else None,
                })  # fmt: skip
            save("memory", data, options.output)
            print(name, variant, recomputed, file=sys.stderr, flush=True)
    headings = ["size", "way", "checkpointed", "examples", "one card, GiB", f"each of {CARDS}, GiB"]
    rows = [
        [*(str(one[key]) for key in ("size", "way", "checkpointed", "examples")),
         *("" if one[key] is None else f"{one[key] / 2**30:.1f}" for key in ("one_card", "each_of_cards"))]
        for one in data["trainings"]
    ]  # fmt: skip
    for name, one in checked.items():
        print(f"{name}: measured {one['measured_mib']:.1f} MiB, counted {one['counted_mib']:.1f} MiB")
    publish("memory", headings, rows, data, options.output)


def small() -> dict[str, tuple[Llama, int | None, bool, int, int]]:
    """Models whose peak can be measured: size, bits of a frozen base, checkpointing, examples and positions."""
    from tests.bench.memory_counted import Llama

    return {
        "8.4 million numbers, all trained": (Llama(256, 688, 8, 8, 4, 8000, tied=True), None, False, 8, 128),
        "the same, checkpointed": (Llama(256, 688, 8, 8, 4, 8000, tied=True), None, True, 8, 128),
        "29 million numbers, LoRA": (Llama(512, 1376, 8, 8, 8, 4000), 32, False, 8, 128),
    }


def checks() -> dict[str, Result]:
    """For each small model the peak of a step that is measured and the one that is counted, and the relative error."""
    found = {}
    for name, case in small().items():
        measured = forked(lambda case=case: {"mib": _measured(*case)})["mib"]
        counted = _counted(*case)
        found[name] = {
            "measured_mib": measured, "counted_mib": counted["all"] / 2**20,
            "micro_batch_mib": counted["micro"] / 2**20, "error": counted["all"] / 2**20 / measured - 1,
        }  # fmt: skip
    return found


def _measured(size: Llama, bits: int | None, recomputed: bool, examples: int, positions: int) -> float:
    """What the kernel saw of a step that is not the first, above what the libraries take, in MiB."""
    import torch

    from tests.bench.memory_counted import build, private_step

    torch.set_num_threads(1)
    count_what_is_held()
    _warm()
    before = status_mib("VmRSS")
    with private_step(build(size, size.layers, bits, recomputed=recomputed), examples, positions, bf16=False) as step:
        step()  # the first also compares with autograd
        forget_peak()
        step()
        return status_mib("VmHWM") - before


def _warm() -> None:
    """Have the libraries take what they keep."""
    from tests.bench.memory_counted import Llama, build, private_step

    with private_step(build(Llama(32, 64, 2, 2, 2, 50), 2, None), 2, 8, bf16=False) as step:
        step()


def _counted(size: Llama, bits: int | None, recomputed: bool, examples: int, positions: int) -> dict[str, int]:
    from privctl.train.network.tensor_bytes import bytes_of
    from tests.bench.memory_counted import build, fake, step_peaks

    with fake(gpu=False):
        network = build(size, size.layers, bits, recomputed=recomputed)
        micro = max(step_peaks(network, examples, positions, bf16=False).values())
        gradients = sum(4 * p.numel() for p in network.parameters() if p.requires_grad)
    return {"all": bytes_of(network) + gradients + micro, "micro": micro}


def in_shards() -> dict[str, tuple[Llama, int | None, bool, int, int]]:
    """Models that are trained in shards, as ``small``."""
    from tests.bench.memory_counted import Llama

    return {
        "8.4 million numbers, all trained, checkpointed": (
            Llama(256, 688, 8, 8, 4, 8000, tied=True), None, True, 2, 128,
        ),
        "29 million numbers, all trained, checkpointed": (Llama(512, 1376, 8, 8, 8, 4000), None, True, 1, 64),
        "29 million numbers, LoRA": (Llama(512, 1376, 8, 8, 8, 4000), 32, False, 1, 128),
    }  # fmt: skip


def shard_checks() -> list[Result]:
    """The bytes that 2 and 4 processes with ``--fsdp`` hold at most of tensors, and what is computed for them."""
    from tests.bench.memory_counted import build, fake, need_of, step_peaks

    found = []
    for name, (size, bits, recomputed, examples, positions) in in_shards().items():
        with fake(gpu=False):
            network = build(size, size.layers, bits, recomputed=recomputed)
            need = need_of(network, step_peaks(network, examples, positions, bf16=False))
        asked = {
            "size": dataclasses.asdict(size), "bits": bits, "recomputed": recomputed, "examples": examples,
            "positions": positions,
        }  # fmt: skip
        for processes in (2, 4):
            each = _together(processes, json.dumps(asked))
            held = max(one["shards"] + one["most"] for one in each)
            found.append({
                "model": name, "processes": processes, "held_mib": held / 2**20,
                "computed_mib": need.shared(processes) / 2**20, "error": need.shared(processes) / held - 1,
            })  # fmt: skip
    return found


def _together(processes: int, numbers: str) -> list[dict[str, int]]:
    """What each of several processes of ``memory_shards`` writes."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        shared = {**os.environ, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        call = [sys.executable, "-m", "tests.bench.memory_shards", f"{folder}/held", numbers]
        running = [subprocess.Popen(call, env={**shared, "RANK": str(rank)}) for rank in range(processes)]
        codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError("a process in shards failed; its message is above")
        return [json.loads(Path(f"{folder}/held-{rank}").read_text()) for rank in range(processes)]


def costs(positions: int) -> dict[str, Result]:
    """By size: operations a token of trainings, hours of one card for 1e9 tokens, and seconds of an update."""
    from tests.bench.memory_counted import SIZES

    found = {}
    for name, size in SIZES.items():
        layers, head = linear_shapes(size)
        products = size.layers * sum(2 * d * p for d, p in layers)
        norms = size.layers * sum(norm_operations(d, p, positions) for d, p in layers)
        attention = 2 * size.layers * positions * size.width  # causal: half of all pairs, for scores and for values
        top = 2 * head[0] * head[1]
        forward = products + attention + top
        operations = {
            "non-private": 3 * forward,
            "dp-sgd": 3 * forward + norms + norm_operations(*head, positions),
            "dp-sgd, checkpointed": 4 * forward - top + norms + norm_operations(*head, positions),
            "dp-sgd of LoRA, checkpointed": 3 * forward - top + attention,
        }
        trained = (products + top) // 2 + (0 if size.tied else size.width * size.vocabulary)
        found[name] = {
            "operations_a_token": operations,
            "hours": {method: 1e9 * each / (REACHED * FLOPS) / 3600 for method, each in operations.items()},
            "update_s": _UPDATED * trained / BYTES,
        }
    return found


def linear_shapes(size: Llama) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Input and output features of a block's linear layers, and of the output layer."""
    keys = size.width // size.heads * size.key_heads
    block = [(size.width, size.width)] * 2 + [(size.width, keys)] * 2
    block += [(size.width, size.wide)] * 2 + [(size.wide, size.width)]
    return block, (size.width, size.vocabulary)


def norm_operations(inputs: int, outputs: int, positions: int) -> int:
    """Operations a token for a layer's norms: by Gram matrices, or by the gradient itself where that is less."""
    return min(2 * positions * (inputs + outputs), 2 * inputs * outputs)
