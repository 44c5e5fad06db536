"""DP-Weights recomputed: the paper's noise and the epsilon that follows, its claims, and the effect on a model.

First, the noise of the published formula for the paper's own training settings, with the epsilon that follows for a
convex loss and for any loss. Then a verdict on each of its claims. Then a small GPT-2 is trained until it has memorized
its records; noise is added by the formula and by calibrations that hold, and each model is attacked.

    python examples/dp_weights/run.py -o dp-weights-results

It needs no data and no network. OUTPUT gets results.json, table.md and plot.svg, and a folder ``runs`` with models,
reports and synthetic records. Run the same command again to continue a stopped run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.dp_weights import measuring, settings, showing
from examples.harness.results import ResultsFile, Row, versions
from examples.harness.running import Cells, Example, measure_missing, parse, parser, run_example, start


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command-line options."""
    known = parser(
        __doc__, quick="one setting of training and few records: under a minute", seeds="models trained (default: 1)"
    )
    return parse(known, arguments, {"seeds": (1, 1)})


def chosen(options: argparse.Namespace) -> tuple[settings.Formula, settings.Models]:
    """The settings of both parts."""
    if options.quick:
        return settings.QUICK_FORMULA, settings.QUICK_MODELS
    return settings.Formula(), settings.Models()


def asked(options: argparse.Namespace) -> Row:
    """The settings that results belong to."""
    formula, models = chosen(options)
    return {"formula": settings.plain(formula), "models": settings.plain(models)}


def measure(options: argparse.Namespace, file: ResultsFile) -> None:
    """Measure every cell that the results lack."""
    formula, models = chosen(options)
    folder = options.output / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    cells = Cells(
        cells=formula.cells,
        key=lambda cell: cell,
        row_key=lambda row: (row["epochs"], row["batch_size"]),
        measure=lambda cell: measuring.formula(formula, folder, *cell),
        summary="{epochs} epochs, batches of {batch_size}".format_map,
    )
    measure_missing(file, file.results["formula"], cells)
    if not file.results["claims"]:
        file.results["claims"] = measuring.claims()
        file.save()
    noised = Cells(
        cells=settings.grid(models, options.seeds),
        key=lambda cell: cell,
        row_key=lambda row: (row["kind"], row["epsilon"], row["seed"]),
        measure=lambda cell: measuring.noised(models, folder, *cell),
        summary=lambda row: f"{row['kind']} {row['epsilon']:g}, seed {row['seed']}: AUC {row['auc'][0]:.3f}",
    )
    measure_missing(file, file.results["models"], noised)


EXAMPLE = Example(
    settings=asked,
    start=lambda _: {"measured_with": versions("torch", "transformers"), "formula": [], "claims": [], "models": []},
    measure=measure,
    table=showing.table,
    plot=showing.plot,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the plot."""
    run_example(EXAMPLE, parsed(arguments))


if __name__ == "__main__":
    start(main)
