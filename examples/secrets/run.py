"""Secret protection on real text: how much noise lower sampling weights save, and how noise prevents extraction.

First, rare words of abstracts are the secrets. A small masked language model is trained from random weights by plans
with several caps, by plain training and by ordinary DP-SGD. Then numbers are planted in the first words of abstracts, a
small pretrained model is fine-tuned on them with more and more noise, and the audit tries to extract them.

    python examples/secrets/run.py --data-dir ../shared/data -o secrets-results

DATA-DIR holds the model ``stories260k/`` and ``text/20200101-cs.CR.tsv.xz``, a table with a column ``abstract``.
OUTPUT gets results.json, table.md and plot.svg, and a folder ``runs`` with reports, records and books of secrets, which
is private where the records are. Run the same command again to continue a stopped run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.harness.results import ResultsFile, Row, versions, write_lines
from examples.harness.running import Cells, Example, measure_missing, parse, parser, run_example, start
from examples.secrets import measuring, records, settings, showing


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command-line options."""
    known = parser(
        __doc__, quick="few records, steps, caps and noises: some minutes", seeds="trainings of each kind (default: 1)"
    )
    known.add_argument("--only", choices=["weights", "extraction"], help="run only this experiment")
    return parse(known, arguments, {"seeds": (1, 1)})


def chosen(options: argparse.Namespace) -> tuple[settings.Weights, settings.Extraction]:
    """The settings of both experiments."""
    if options.quick:
        return settings.QUICK_WEIGHTS, settings.QUICK_EXTRACTION
    return settings.Weights(), settings.Extraction()


def asked(options: argparse.Namespace) -> Row:
    """The settings that results belong to."""
    weighing, extracting = chosen(options)
    return {"weights": settings.plain(weighing), "extraction": settings.plain(extracting)}


def weights(options: argparse.Namespace, file: ResultsFile, split: records.Split) -> None:
    """Measure every training of the first experiment that the results lack."""
    weighing, _ = chosen(options)
    folder = options.output / "runs" / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    if file.results["weights"] is None:
        words = records.vocabulary(split.public, weighing.vocabulary)
        write_lines(folder / "words.txt", words)
        found = measuring.prepare_weights(weighing, folder, split.private, split.test)
        file.results["weights"] = {**found, "public": len(split.public), "vocabulary": len(words), "runs": []}
        file.save()
    state = file.results["weights"]
    caps = ["none" if row["cap"] is None else repr(row["cap"]) for row in state["caps"][: weighing.caps]]
    cells = Cells(
        cells=settings.grid([settings.PLAIN, settings.UNIFORM, *caps], options.seeds),
        key=lambda cell: cell,
        row_key=lambda row: (row["key"], row["seed"]),
        measure=lambda cell: measuring.weighed(weighing, folder, state["caps"], *cell),
        summary="{key}, seed {seed}: test loss {test_loss:.4f}, noise {noise_multiplier}".format_map,
    )
    measure_missing(file, state["runs"], cells)


def extraction(options: argparse.Namespace, file: ResultsFile, split: records.Split) -> None:
    """Measure every training of the second experiment that the results lack, on the first words of private texts."""
    _, extracting = chosen(options)
    folder = options.output / "runs" / "extraction"
    folder.mkdir(parents=True, exist_ok=True)
    if file.results["extraction"] is None:
        texts = [" ".join(text.split()[: extracting.words]) for text in split.private[: extracting.records]]
        file.results["extraction"] = {**measuring.prepare_extraction(extracting, folder, texts), "runs": []}
        file.save()
    state, base = file.results["extraction"], options.data_dir / records.STORIES
    cells = Cells(
        cells=settings.grid([repr(noise) for noise in extracting.noises], options.seeds),
        key=lambda cell: (float(cell[0]), cell[1]),
        row_key=lambda row: (row["noise_multiplier"], row["seed"]),
        measure=lambda cell: measuring.extracted(extracting, folder, base, state, float(cell[0]), cell[1]),
        summary=lambda row: (
            f"noise {row['noise_multiplier']:g}, seed {row['seed']}: "
            f"told first {row['told'][0]:.3f}, written {row['greedy'][0]:.3f}"
        ),
    )
    measure_missing(file, state["runs"], cells)


def measure(options: argparse.Namespace, file: ResultsFile) -> None:
    """Run both experiments, or the one that ``--only`` names."""
    weighing, _ = chosen(options)
    texts = records.abstracts(options.data_dir / records.ABSTRACTS)
    split = records.split(texts, weighing.private, weighing.test, weighing.words)
    if options.only != "extraction":
        weights(options, file, split)
    if options.only != "weights":
        extraction(options, file, split)


EXAMPLE = Example(
    settings=asked,
    start=lambda _: {"measured_with": versions("torch", "transformers"), "weights": None, "extraction": None},
    measure=measure,
    table=showing.table,
    plot=showing.plot,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the plot."""
    run_example(EXAMPLE, parsed(arguments))


if __name__ == "__main__":
    start(main)
