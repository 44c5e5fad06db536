"""``privctl verify`` of a noised file, whose noise it measures: time and memory, and how often each byte is read."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.bench.common import Variant, execute, interleave, peak, publish, summary
from tests.bench.noise import MAKE, PRIVCTL

#: Runs a command in a process of its own and tells how much that read, caches included.
COUNT = """
import os, re, sys
from privctl.cli import run
before = int(re.search(r"rchar: (\\d+)", open("/proc/self/io").read())[1])
code = run(["verify", sys.argv[1], "-q"])
after = int(re.search(r"rchar: (\\d+)", open("/proc/self/io").read())[1])
open(sys.argv[2], "w").write(str(after - before))
sys.exit(code)
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--gigabytes", type=float, default=0.2, help="size of the float32 file (10^9 bytes)")
    parser.add_argument("--folder", help="where the files are made; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=3)


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    with tempfile.TemporaryDirectory(prefix="bench-verify-", dir=options.folder) as folder:
        _main(options, Path(folder))


def _main(options: argparse.Namespace, folder: Path) -> None:
    model, private = folder / "m.safetensors", folder / "m.noised.safetensors"
    execute([sys.executable, "-c", MAKE, str(model), str(int(options.gigabytes * 1e9 / 4))])
    execute([sys.executable, "-m", "privctl", "noise", str(model), *PRIVCTL.split()])
    report, counted = folder / "m.noised.report.json", folder / "read"
    variants = {
        "verify": Variant([sys.executable, "-c", COUNT, str(report), str(counted)]),
        "cat both": Variant(["sh", "-c", 'cat "$0" "$1" > /dev/null', str(model), str(private)]),
    }
    runs = interleave(variants, options.rounds)
    size = model.stat().st_size + private.stat().st_size
    times_read = int(counted.read_text()) / size
    data = {name: summary(found) for name, found in runs.items()}
    rows = [
        [name, f"{d['median_s']:.2f}", f"{size / d['median_s'] / 1e9:.2f}", peak(d["peak_mib"])]
        for name, d in data.items()
    ]
    most = median(run.peak_mib for run in runs["verify"])
    print(f"{times_read:.3f} times the bytes of both files were read; {most:.0f} MiB at most")
    found = {"gigabytes": options.gigabytes, "times_read": times_read, "variants": data}
    publish("verify", ["variant", "median s", "GB/s", "peak MiB"], rows, found, options.output)
