"""Compare FERRET with DP-SGD and plain training: quality, membership attacks, time and guarantees.

A small pretrained language model is fine-tuned by every method, for several numbers of epochs and several epsilons, and
each result is attacked with the records it was trained on. Before that, each method's learning rate is chosen on
records that are used for nothing else; no guarantee accounts for this choice.

    python examples/ferret/run.py --data-dir ../shared/data -o ferret-results

DATA-DIR holds the model ``stories260k/`` and ``text/tldr_pairs.jsonl.gz``, JSON objects {page, instruction, output}.
OUTPUT gets results.json, table.md and plot.svg, and a folder ``runs`` with every report and the records, which is
private where the records are. Run the same command again to continue a stopped run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.ferret import measuring, records, settings, showing
from examples.harness.results import ResultsFile, Row, machine, versions
from examples.harness.running import Cells, Example, measure_missing, parse, parser, run_example, start


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command-line options. ``--quick`` makes the grid small by changing defaults."""
    known = parser(
        __doc__,
        quick="one epsilon, one epoch, few records: some minutes",
        seeds="runs of each cell (default: 2, with --quick 1)",
    )
    known.add_argument("--members", type=int, help="number of members, and of non-members (default: 2000)")
    known.add_argument(
        "--tuning", type=int, default=1000, help="records for tuning learning rates (default: %(default)s)"
    )
    known.add_argument("--batch-size", type=int, default=10, help="records per step (default: %(default)s)")
    known.add_argument("--max-length", type=int, default=48, help="tokens kept of a record (default: %(default)s)")
    known.add_argument("--epochs", type=int, nargs="+", help="numbers of epochs (default: 1 3 5)")
    known.add_argument("--epsilons", type=float, nargs="+", help="epsilons, or nats (default: 0.1 0.5 1 2)")
    known.add_argument("--methods", nargs="+", choices=list(settings.METHODS), default=list(settings.METHODS))
    known.add_argument("--no-tuning", action="store_true", help="use the learning rates in settings.py")
    options = parse(
        known,
        arguments,
        {
            "members": (2000, 300),
            "epochs": ([1, 3, 5], [1]),
            "epsilons": ([0.1, 0.5, 1.0, 2.0], [1.0]),
            "seeds": (2, 1),
        },
    )
    options.no_tuning = options.no_tuning or options.quick
    return options


def asked(options: argparse.Namespace) -> Row:
    """The settings that results belong to."""
    return {
        "model": records.MODEL.name,
        "data": records.PAIRS.name,
        "members": options.members,
        "nonmembers": options.members,
        "tuning": options.tuning,
        "batch_size": options.batch_size,
        "max_length": options.max_length,
        "tuned": not options.no_tuning,
        "tuned_at": {"epsilon": settings.TUNED_EPSILON, "epochs": settings.TUNED_EPOCHS},
    }


def best_rate(results: Row, method: str) -> float:
    """The tuned learning rate of a method; its default if it was not tuned."""
    rows = [row for row in results["tuning"] if row["method"] == method]
    if not rows:
        return settings.METHODS[method].default_rate
    return float(min(rows, key=lambda row: row["perplexity"])["learning_rate"])


def tune(options: argparse.Namespace, work: measuring.Work, file: ResultsFile) -> None:
    """Measure every learning rate that the results lack."""

    def tried(cell: tuple[settings.Cell, float]) -> Row:
        method, rate = cell[0].method, cell[1]
        return {"method": method, "learning_rate": rate, "perplexity": measuring.tuned(work, *cell)}

    cells = Cells(
        cells=settings.tuning(options.methods),
        key=lambda cell: (cell[0].method, cell[1]),
        row_key=lambda row: (row["method"], row["learning_rate"]),
        measure=tried,
        summary=lambda row: "tuning {method}: {learning_rate:g} gives perplexity {perplexity:.4g}".format(**row),
    )
    measure_missing(file, file.results["tuning"], cells)


def compare(options: argparse.Namespace, work: measuring.Work, file: ResultsFile) -> None:
    """Measure the base model, then every cell of the grid that the results lack."""
    results = file.results
    measuring.warm_up(work, options.methods)
    if results["base"] is None:
        results["base"] = measuring.judge(work, work.model, "base")
        file.save()
    grid = settings.grid(options.methods, options.epochs, options.epsilons, options.seeds)
    reasons = {reason for cell in grid if (reason := settings.left_out(cell))}
    results["left_out"] = sorted({*results["left_out"], *reasons})
    cells = Cells(
        cells=[cell for cell in grid if not settings.left_out(cell)],
        key=lambda cell: cell.key,
        row_key=lambda row: row["key"],
        measure=lambda cell: measuring.measured(work, cell, best_rate(results, cell.method)),
        summary=lambda row: (
            f"{row['key']}: perplexity {row['perplexity']:.4g}, AUC {row['auc_best'][0]:.3f}, {row['seconds']:.1f} s"
        ),
    )
    measure_missing(file, results["runs"], cells)


def measure(options: argparse.Namespace, file: ResultsFile) -> None:
    """Choose learning rates, then measure all cells."""
    runs = options.output / "runs"
    texts = records.split(records.pairs(options.data_dir / records.PAIRS), options.members, options.tuning)
    work = measuring.Work(
        model=options.data_dir / records.MODEL,
        files=texts.write(runs),
        folder=runs,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )
    if not options.no_tuning:
        tune(options, work, file)
    compare(options, work, file)


EXAMPLE = Example(
    settings=asked,
    start=lambda _: {
        "measured_with": {**machine(), **versions("torch", "privctl")},
        "tuning": [],
        "base": None,
        "runs": [],
        "left_out": [],
    },
    measure=measure,
    table=showing.table,
    plot=showing.plot,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose learning rates, measure, then write the table and the plot."""
    run_example(EXAMPLE, parsed(arguments))


if __name__ == "__main__":
    start(main)
