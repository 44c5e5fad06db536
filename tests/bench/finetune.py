"""What FERRET and DPQuant are worth in fine-tuning a model that knows similar text, beside DP-SGD of the same epsilon.

The model is pretrained here (``finetune_model``), without privacy, on public text; then each cell trains it on the
private text by what ``privctl retrain`` calls. Each cell's learning rate is chosen by one run each on a seed that the
comparison does not use; no epsilon counts that choice. A seed decides on the batches, the noise, directions, draws of
layers and rounding, so cells are compared within a seed. Results are written after every run, and a stopped bench goes
on where it was stopped.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from tests.bench.common import RESULTS, publish, save
from tests.bench.finetune_cells import CELLS, DELTA, Cell, trained
from tests.bench.finetune_model import SIZES, available, pretrained

if TYPE_CHECKING:
    import argparse

    from tests.bench.finetune_model import Made

_TUNING_SEED = 1000
HEADINGS = (
    "weights", "training", "epsilon", "seeds", "held-out loss, nats", "fall in loss", "share in 4 bits",
    "loss minus that of another row, 95 % interval",
)  # fmt: skip

Row = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--size", action="append", choices=tuple(SIZES), help="repeatable; default: 0.3M and 2.2M")
    parser.add_argument("--cell", action="append", help="only cells that this glob matches (repeatable)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--members", type=int, default=2000, help="private records to train on")
    parser.add_argument("--held-out", type=int, default=300, help="private records to measure on")
    parser.add_argument("--rate", type=float, help="this learning rate, instead of tuning")
    parser.add_argument("--folder", type=Path, required=True, help="where models are kept between runs")


def main(options: argparse.Namespace) -> None:
    """Pretrain, tune, train and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    if not available():
        raise SystemExit("the text of ../shared/data is not there")
    found = _earlier(options)
    for name in options.size or ("0.3M", "2.2M"):
        start = pretrained(SIZES[name], options.folder / name, options.members, options.held_out)
        of_size = found["sizes"].setdefault(name, {"pretraining": start.facts, "tuning": [], "runs": []})
        cells = [cell for cell in CELLS if any(fnmatchcase(cell.name, glob) for glob in options.cell or ("*",))]
        rates = {cell.name: options.rate or _rate(cell, start, of_size, options, found) for cell in cells}
        of_size.setdefault("rates", {}).update(rates)
        for seed in range(options.seeds):
            for cell in cells:
                _once(cell, rates[cell.name], seed, start, of_size["runs"], options, found)
    publish("finetune", HEADINGS, rows(found), found, options.output)


def _earlier(options: argparse.Namespace) -> Row:
    """What an earlier run with the same records left, or an empty beginning."""
    path = Path(options.output) if options.output else RESULTS / "finetune.json"
    settings = {"members": options.members, "held_out": options.held_out, "delta": DELTA, "threads": 1}
    if path.is_file():
        left: Row = json.loads(path.read_text())
        if all(left[name] == value for name, value in settings.items()):
            return {name: value for name, value in left.items() if name not in ("bench", "machine")}
    return {**settings, "sizes": {}}


def _once(
    cell: Cell, rate: float, seed: int, start: Made, into: list[Row], options: argparse.Namespace, found: Row
) -> Row:
    """The run of a cell, from the results where they have it."""
    key = {"cell": cell.name, "learning_rate": rate, "seed": seed}
    for run in into:
        if all(run[name] == value for name, value in key.items()):
            return run
    run = trained(cell, start, rate, seed, options.folder)
    into.append(run)
    save("finetune", found, options.output)
    print(f"{start.facts['weights']} weights, {cell.name}, rate {rate:g}, seed {seed}: {run['loss']:.4f}, "
          f"before {run['before']:.4f}, {run['seconds']:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
    return run


def _rate(cell: Cell, start: Made, of_size: Row, options: argparse.Namespace, found: Row) -> float:
    """By steps of factor 2 to the lowest held-out loss on the tuning seed, of the cell that ``cell`` takes it from."""
    source = next(each for each in CELLS if each.name == (cell.tune or cell.name))
    losses: dict[float, float] = {}

    def loss(rate: float) -> float:
        if rate not in losses:
            losses[rate] = _once(source, rate, _TUNING_SEED, start, of_size["tuning"], options, found)["loss"]
        return losses[rate]

    best = source.rate
    while (better := min((best, 2 * best, best / 2), key=loss)) != best:
        best = better
    return best


def rows(found: Mapping[str, Any]) -> list[list[str]]:
    """A line for each size and cell: means +- standard errors, and the paired difference with a 95 % interval."""
    return [
        _row(of_size, cell, runs)
        for of_size in found["sizes"].values()
        for cell in CELLS
        if (runs := _of(of_size, cell.name))
    ]


def _row(of_size: Row, cell: Cell, runs: Mapping[int, Row]) -> list[str]:
    base = _of(of_size, cell.base) if cell.base else {}
    against = paired([run["loss"] - base[seed]["loss"] for seed, run in runs.items() if seed in base])
    shares = [run["low_precision_share"] for run in runs.values() if "low_precision_share" in run]
    return [
        f"{of_size['pretraining']['weights']:,}", cell.name, "-" if cell.epsilon is None else f"{cell.epsilon:g}",
        str(len(runs)), spread([run["loss"] for run in runs.values()]),
        spread([run["before"] - run["loss"] for run in runs.values()]), f"{mean(shares):.2f}" if shares else "-",
        f"{against} against {cell.base}" if against else "-",
    ]  # fmt: skip


def paired(differences: Sequence[float]) -> str:
    """Mean and 95 % interval by Student's t; empty for fewer than two differences."""
    if len(differences) < 2:
        return ""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / math.sqrt(len(differences))
    return f"{mean(differences):+.4f} [{mean(differences) - half:+.4f}, {mean(differences) + half:+.4f}]"


def _of(of_size: Row, cell: str) -> dict[int, Row]:
    """A cell's runs by seed, at the learning rate that was chosen last."""
    rate = of_size.get("rates", {}).get(cell)
    return {run["seed"]: run for run in of_size["runs"] if run["cell"] == cell and rate in (None, run["learning_rate"])}


def spread(values: Sequence[float]) -> str:
    """Mean and standard error."""
    error = f" +- {stdev(values) / math.sqrt(len(values)):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{error}"
