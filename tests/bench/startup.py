"""How long a user waits for ``--help``, against Python alone and Python with click."""

from __future__ import annotations

import argparse
import sys

from privctl.cli import COMMANDS
from tests.bench.common import Variant, execute, interleave, peak, publish, ratio, summary


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=21)


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    privctl = [sys.executable, "-m", "privctl"]
    variants = {
        "python -c pass": Variant([sys.executable, "-c", "pass"]),
        "import click": Variant([sys.executable, "-c", "import click"]),
        "privctl --help": Variant([*privctl, "--help"]),
        **{f"privctl {name} --help": Variant([*privctl, name, "--help"]) for name in COMMANDS},
    }
    for variant in variants.values():
        execute(variant.command)  # compiles bytecode and warms the page cache
    runs = interleave(variants, options.rounds)
    data = {
        name: {
            **summary(r),
            "to_python": ratio(runs, name, "python -c pass"),
            "to_click": ratio(runs, name, "import click"),
        }
        for name, r in runs.items()
    }
    rows = [
        [name, f"{1000 * d['median_s']:.1f}", f"{d['to_python']:.2f}", f"{d['to_click']:.2f}", peak(d["peak_mib"])]
        for name, d in data.items()
    ]
    headings = ["variant", "median ms", "/ python", "/ click", "peak MiB"]
    publish("startup", headings, rows, {"rounds": options.rounds, "variants": data}, options.output)
