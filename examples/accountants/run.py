"""Compare accountants: the epsilon and the noise that each computes, and the effect of that noise on a model.

First, the accountants of the DP fine-tuning poster and of privctl, Opacus and dp-accounting compute epsilon for given
noise, and the noise for a given epsilon, of the same trainings. Then a small GPT-2 is trained from random weights on
synthetic notes with planted canaries, with the noise of each accountant, and an audit measures the canaries.

    python examples/accountants/run.py -o accountants-results

It needs no data and no network. OUTPUT gets results.json, table.md and plot.svg, and a folder ``runs`` with reports and
records. Run the same command again to continue a stopped run. Opacus and dp-accounting are left out
where they are not installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.accountants import measuring, settings, showing
from examples.harness.results import ResultsFile, Row, versions
from examples.harness.running import Cells, Example, measure_missing, parse, parser, run_example, start


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command-line options."""
    known = parser(
        __doc__,
        quick="few records and epochs, one setting of each kind: under a minute",
        seeds="trainings of each kind (default: 1)",
    )
    return parse(known, arguments, {"seeds": (1, 1)})


def training(options: argparse.Namespace) -> settings.Training:
    """The settings of the trainings."""
    return settings.QUICK if options.quick else settings.Training()


def measure(options: argparse.Namespace, file: ResultsFile) -> None:
    """Measure every answer and then every training that the results lack."""
    most = 1 if options.quick else None
    answers = Cells(
        cells=[*settings.KNOWN[:most], *settings.SOUGHT[:most]],
        key=lambda cell: cell.key,
        row_key=lambda row: row["key"],
        measure=measuring.accounted,
        summary="{key}".format_map,
    )
    measure_missing(file, file.results["answers"], answers)
    chosen, folder = training(options), options.output / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    if file.results["prepared"] is None:
        file.results["prepared"] = measuring.prepare(chosen, folder)
        file.save()
    prepared = file.results["prepared"]
    trainings = Cells(
        cells=settings.grid([settings.PLAIN, *settings.WAYS], options.seeds),
        key=lambda cell: cell,
        row_key=lambda row: (row["way"], row["seed"]),
        measure=lambda cell: measuring.trained(chosen, folder, prepared, *cell),
        summary="{way}, seed {seed}: perplexity {perplexity:.4g}, exposure {exposure:.3g} bits".format_map,
    )
    measure_missing(file, file.results["runs"], trainings)


def beginning(_: argparse.Namespace) -> Row:
    """Empty results, with the versions of packages."""
    found = versions("torch", "transformers", "opacus", "dp-accounting")
    return {"measured_with": found, "answers": [], "prepared": None, "runs": []}


EXAMPLE = Example(
    settings=lambda options: settings.plain(training(options)),
    start=beginning,
    measure=measure,
    table=showing.table,
    plot=showing.plot,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the plot."""
    run_example(EXAMPLE, parsed(arguments))


if __name__ == "__main__":
    start(main)
