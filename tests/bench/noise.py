"""``privctl noise`` on a large file, against ``cp`` and against what people write instead. All are whole processes."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.common import Run, Variant, execute, interleave, peak, publish, ratio, summary

#: The command as it is where llvmlite is not installed.
WITHOUT_CODE = "import sys; sys.modules['llvmlite'] = None; from privctl.__main__ import main; sys.exit(main())"

MAKE = """
import json, sys
import numpy as np
path, elements, each = sys.argv[1], int(sys.argv[2]), 16 << 20
block = np.random.default_rng(0).normal(scale=0.02, size=each).astype(np.float32)
header, position = {"__metadata__": {"format": "pt"}}, 0
for i in range(-(-elements // each)):
    count = min(each, elements - i * each)
    header[f"layers.{i}.weight"] = {"dtype": "F32", "shape": [count], "data_offsets": [position, position + 4 * count]}
    position += 4 * count
raw = json.dumps(header).encode()
raw += b" " * (-len(raw) % 8)
with open(path, "wb") as file:
    file.write(len(raw).to_bytes(8, "little") + raw)
    while position:
        block += np.float32(1e-3)  # equal tensors would be taken for tied ones
        position -= file.write(block[: position // 4])
"""

NAIVE = """
import sys
import torch
from safetensors.torch import load_file, save_file
weights = load_file(sys.argv[1])
noised = {name: w + torch.randn_like(w) * 0.01 for name, w in weights.items()}
save_file(noised, sys.argv[2], metadata={"format": "pt"})
"""

PRIVCTL = (
    "--epsilon 1 --delta 1e-6 --epochs 10 --learning-rate 5e-5 --clip-norm 1 --dataset-size 1000 --batch-size 5 "
    "--calibration published --quiet"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the float32 file (10^9 bytes)")
    parser.add_argument("--folder", help="where the file is made once and kept; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="threads of privctl noise")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    if options.folder:
        _main(options, Path(options.folder).resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="bench-noise-") as folder:
            _main(options, Path(folder))


def _main(options: argparse.Namespace, folder: Path) -> None:
    model = _model(folder, options.gigabytes)
    noise = ["noise", model, *PRIVCTL.split(), "--threads", options.threads, "-o"]
    commands = {
        "cp": ["cp", model],
        "cp and sync": ["sh", "-c", 'cp "$0" "$1" && sync "$1"', model],
        "naive": [sys.executable, "-c", NAIVE, model],
        "privctl": [sys.executable, "-m", "privctl", *noise],
        "privctl without llvmlite": [sys.executable, "-c", WITHOUT_CODE, *noise],
    }
    outputs = {name: folder / "out" / name / "noised.safetensors" for name in commands}
    variants = {
        name: Variant([*map(str, command), str(outputs[name])], partial(_empty, outputs[name].parent))
        for name, command in commands.items()
    }
    try:
        execute(["cat", str(model)])  # into the page cache
        runs = interleave(variants, options.rounds)
        written = {name: path.stat().st_size for name, path in outputs.items()}
    finally:
        shutil.rmtree(folder / "out", ignore_errors=True)
    _publish(options, runs, written)


def _publish(options: argparse.Namespace, runs: dict[str, list[Run]], written: dict[str, int]) -> None:
    data: dict[str, Any] = {}
    for name, of_name in runs.items():
        data[name] = {
            **summary(of_name),
            "to_cp": ratio(runs, name, "cp"),
            "to_cp_and_sync": ratio(runs, name, "cp and sync"),
            "bytes_written": written[name],
        }
    faster = ratio(runs, "naive", "privctl")
    rows = [
        [
            name, f"{d['median_s']:.2f}", f"{d['cpu_s']:.2f}", f"{d['to_cp']:.2f}", f"{d['to_cp_and_sync']:.2f}",
            peak(d["peak_mib"]),
        ]
        for name, d in data.items()
    ]  # fmt: skip
    rows.append(["naive / privctl", f"{faster:.2f}", "", "", "", ""])
    headings = ["variant", "median s", "CPU s", "/ cp", "/ cp and sync", "peak MiB"]
    settings = {"gigabytes": options.gigabytes, "rounds": options.rounds, "threads": options.threads}
    publish("noise", headings, rows, {**settings, "naive_to_privctl": faster, "variants": data}, options.output)


def _model(folder: Path, gigabytes: float) -> Path:
    """The file to be noised, made unless it lies there already."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / f"bench-{gigabytes:g}GB.safetensors"
    if not model.exists():
        partial_file = model.with_suffix(".making")
        execute([sys.executable, "-c", MAKE, str(partial_file), str(int(gigabytes * 1e9 / 4))])
        partial_file.rename(model)
    return model


def _empty(folder: Path) -> None:
    """Remove the variant's own previous output, and let what others wrote reach the disk outside the clock."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
