"""Which architectures of transformers keep each record's gradient to itself, and what the self-test says of them.

Networks are tiny and random. ``moved`` is by how many clip norms one record moves the clipped sum of 16 and of 40
records, found without the self-test: at most 1 for what passes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.common import publish

if TYPE_CHECKING:
    import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--only", action="append", help="only architectures whose names begin so")


def main(options: argparse.Namespace) -> None:
    """Survey and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    from tests.train.contribution.architectures import ALL
    from tests.train.contribution.survey import SIZES, survey

    torch.set_num_threads(1)
    found = []
    for each in ALL:
        if each.name.startswith(tuple(options.only or [""])):
            with tempfile.TemporaryDirectory() as folder:
                found.append(survey(each, Path(folder)))
            print(f"{each.task} {each.name}: {found[-1].outcome} {found[-1].reason}", file=sys.stderr, flush=True)
    headings = ["task", "architecture", "outcome", "difference"]
    headings += (
        [f"moved, {size} records" for size in SIZES] + [f"untreated, {size}" for size in SIZES] + ["seconds", "why"]
    )
    rows = [
        [
            str(row.task), row.name, row.outcome, f"{row.difference:.1e}",
            *("" if row.moved is None else f"{row.moved[size]:.4f}" for size in SIZES),
            *("" if row.before is None else f"{row.before[size]:.4f}" for size in SIZES),
            f"{row.seconds:.1f}", row.reason[:110],
        ]
        for row in found
    ]  # fmt: skip
    counts = Counter(row.outcome for row in found)
    data = {
        "counts": dict(counts),
        "rows": [{name: getattr(row, name) for name in row.__slots__} for row in found],
    }
    publish("contribution", headings, rows, data, options.output)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
