"""Run any example: from command-line options to results, a table and a plot."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from examples.harness.commands import CommandFailed
from examples.harness.results import ResultsFile, Row, open_results
from privctl.domain.errors import PrivctlError
from privctl.storage.atomic import write_bytes

C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The parts that differ between examples.

    A run continues from earlier results only if their ``settings`` are the same. ``start`` returns the other entries of
    empty results. ``measure`` measures the missing cells and saves after each.
    """

    settings: Callable[[argparse.Namespace], Row]
    start: Callable[[argparse.Namespace], Row]
    measure: Callable[[argparse.Namespace, ResultsFile], None]
    table: Callable[[Mapping[str, Any]], str]
    plot: Callable[[Mapping[str, Any]], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells(Generic[C]):
    """The cells to measure, in order. ``key`` of a cell equals ``row_key`` of its row in the results."""

    cells: Sequence[C]
    key: Callable[[C], Hashable]
    row_key: Callable[[Row], Hashable]
    measure: Callable[[C], Row]
    summary: Callable[[Row], str]


def parser(description: str | None, *, quick: str, seeds: str) -> argparse.ArgumentParser:
    """A parser with the options of every example; ``quick`` and ``seeds`` are help texts of these options."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--data-dir", type=Path, default=Path("../shared/data"), help="folder of the data (default: %(default)s)"
    )
    made.add_argument("-o", "--output", type=Path, required=True, help="folder to create, or to continue in")
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--seeds", type=int, help=seeds)
    made.add_argument(
        "--show-only", action="store_true", help="only make the table and the plot again from results.json"
    )
    return made


def parse(
    known: argparse.ArgumentParser, arguments: Sequence[str] | None, defaults: Mapping[str, tuple[Any, Any]]
) -> argparse.Namespace:
    """Parse ``arguments``; missing options get the first of their ``defaults``, with ``--quick`` the second.

    Exits with a usage error where ``--seeds`` is below 1.
    """
    options = known.parse_args(arguments)
    for name, (full, quick) in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    if options.seeds < 1:
        known.error("--seeds must be at least 1")
    return options


def shuffled(seeds: int, block: Callable[[int], list[C]]) -> list[C]:
    """The cells of every seed, one seed after the other, in a fixed random order within a seed.

    So changes of the machine's speed affect all kinds of cells alike, and a run that is stopped early has some cells of
    each kind.
    """
    cells: list[C] = []
    for seed in range(seeds):
        drawn = block(seed)
        random.Random(seed).shuffle(drawn)  # noqa: S311 - an order, not a secret
        cells += drawn
    return cells


def measure_missing(file: ResultsFile, rows: list[Row], asked: Cells[C]) -> None:
    """Measure every cell without a row in ``rows``, a list inside ``file``, and save after each."""
    known = {asked.row_key(row) for row in rows}
    for i, cell in enumerate(asked.cells, start=1):
        if (key := asked.key(cell)) not in known:
            row = asked.measure(cell)
            rows.append(row)
            known.add(key)
            file.save()
            tell(f"{i} of {len(asked.cells)}: {asked.summary(row)}")


def tell(text: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run_example(example: Example, options: argparse.Namespace) -> None:
    """Measure the cells that the results in ``--output`` lack, then write the table and the plot.

    Raises SystemExit where these results have other settings.
    """
    folder: Path = options.output
    place = folder / "results.json"
    if options.show_only:
        file = ResultsFile.read(place)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_results(place, example.settings(options), example.start(options))
        example.measure(options, file)
    write_bytes(folder / "table.md", example.table(file.results).encode())
    write_bytes(folder / "plot.svg", example.plot(file.results))
    tell(f"wrote {folder / 'table.md'} and {folder / 'plot.svg'}")


def start(main: Callable[[], None]) -> None:
    """Call ``main``; exit with one sentence where it fails or is interrupted."""
    try:
        main()
    except (CommandFailed, PrivctlError, ValueError, OSError) as fault:
        raise SystemExit(f"run.py: {fault}") from None
    except KeyboardInterrupt:
        raise SystemExit("run.py: stopped; run the same command again to continue") from None
