"""``python -m tests.gpu.measure PART``: one thing that only a GPU can tell, each result on disk as soon as it is known.

``--toy`` takes networks of no size, so that all of it can be tried on a processor. Peaks of memory are known on a GPU
alone; on a processor they are null. Precision is bfloat16 where a row says so, else float32 without TF32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch

from privctl.show.text.style import table
from privctl.train.clipping.products import full_precision
from tests.bench.common import save
from tests.gpu.costs import memory, waits
from tests.gpu.networks import POSITIONS
from tests.gpu.shards import shards
from tests.gpu.speeds import audits, fp8

#: Name of a part -> its rows, given a device and whether it is a toy.
PARTS: dict[str, Callable[[torch.device, bool], Iterator[dict[str, Any]]]] = {
    "audits": audits,
    "fp8": fp8,
    "memory": memory,
    "shards": shards,
    "waits": waits,
}


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.measure", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--output", help="where the JSON goes (default: tests/bench/results/PART-cuda.json)")
    options = parser.parse_args()
    device, name = torch.device(options.device), f"{options.part}-cuda"
    data: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "toy": options.toy,
        "positions": POSITIONS[options.toy],
        "rows": [],
    }
    with full_precision(device):
        for row in PARTS[options.part](device, options.toy):
            data["rows"].append(row)
            save(name, data, options.output)
    headings = list(dict.fromkeys(key for row in data["rows"] for key in row))
    print(table(headings, [[_cell(row.get(key, "")) for key in headings] for row in data["rows"]]), end="")


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
