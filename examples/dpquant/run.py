"""DPQuant on traffic signs and on sentences: how much accuracy low precision costs, by how its layers are chosen.

A small ResNet and a small BERT are trained with (8, 1e-5)-DP in full precision, with all layers in LUQ-FP4, and with
50, 75 and 90 % of the layers in it: chosen each epoch by private measurements (dpquant), each epoch at random, or once.
For comparison they are also trained without privacy, in full precision and with all layers in LUQ-FP4.

    python examples/dpquant/run.py --data-dir ../shared/data -o dpquant-results

DATA-DIR holds ``vision/gtsrb-train-subset.tar.gz`` (class folders of PPM images) and ``text/sst2/`` (train.tsv, dev.tsv
and test.tsv: sentence, tab, label). OUTPUT gets results.json, table.md and plot.svg, and a folder ``runs`` with the
data and every report, which is private where the data is. Run the same command again to continue a stopped run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.dpquant import settings, showing
from examples.harness.results import ResultsFile, Row, machine, versions
from examples.harness.running import Cells, Example, measure_missing, parse, parser, run_example, start

if TYPE_CHECKING:
    from examples.dpquant.records import Task


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command-line options. ``--quick`` makes the grid small by changing defaults."""
    known = parser(
        __doc__,
        quick="one seed, one fraction, few examples: about two minutes",
        seeds="runs of each cell (default: 3, with --quick 1)",
    )
    known.add_argument("--tasks", nargs="+", choices=list(settings.TRAININGS), default=list(settings.TRAININGS))
    known.add_argument("--fractions", type=float, nargs="+", help="fractions of the layers (default: 0.5 0.75 0.9)")
    known.add_argument("--statics", type=int, help="static choices to draw (default: 4, with --quick 1)")
    known.add_argument("--examples", type=int, help="most examples of each task (default: all, with --quick 300)")
    fractions = (list(settings.FRACTIONS), [0.75])
    return parse(
        known, arguments, {"fractions": fractions, "seeds": (3, 1), "statics": (4, 1), "examples": (None, 300)}
    )


def asked(options: argparse.Namespace) -> Row:
    """The settings that results belong to."""
    return {
        "format": settings.FORMAT,
        "epsilon": settings.EPSILON,
        "delta": settings.DELTA,
        "examples": options.examples,
        "trainings": {name: asdict(training) for name, training in settings.TRAININGS.items()},
    }


def made_task(options: argparse.Namespace, name: str) -> Task:
    """A task's data, with its model trained on the public part of the data."""
    from examples.dpquant import measuring, records

    make, source = {
        "signs": (records.signs, records.SIGNS),
        "sentences": (records.sentences, records.SENTENCES),
    }[name]
    runs = options.output / "runs"
    return measuring.pretrained(make(options.data_dir / source, runs / name, options.examples), runs)


def measure(options: argparse.Namespace, file: ResultsFile) -> None:
    """Measure every cell of the grid that the results lack."""
    from examples.dpquant import measuring

    tasks = {name: made_task(options, name) for name in options.tasks}
    file.results["examples"] |= {name: task.examples for name, task in tasks.items()}
    cells = Cells(
        cells=settings.grid(options.tasks, options.fractions, options.seeds, options.statics),
        key=lambda cell: cell.key,
        row_key=lambda row: row["key"],
        measure=lambda cell: measuring.measured(tasks[cell.task], cell, options.output / "runs"),
        summary=lambda row: f"{row['key']}: accuracy {row['accuracy']:.3f}, {row['seconds']:.1f} s",
    )
    measure_missing(file, file.results["runs"], cells)


EXAMPLE = Example(
    settings=asked,
    start=lambda _: {"measured_with": {**machine(), **versions("torch", "privctl")}, "examples": {}, "runs": []},
    measure=measure,
    table=showing.table,
    plot=showing.plot,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the plot."""
    run_example(EXAMPLE, parsed(arguments))


if __name__ == "__main__":
    start(main)
