"""DPQuant on traffic signs and on sentences: what few bits cost private training, by how their layers are chosen.

A small ResNet and a small BERT are trained with (8, 1e-5)-DP in full precision, with all layers in LUQ-FP4, and with
50, 75 and 90 % of the layers in it: chosen each epoch by private measurements (dpquant), each epoch at random, or once.
Beside that stands training without privacy, in full precision and with all layers in LUQ-FP4.

    python examples/dpquant/run.py --data-dir ../shared/data -o dpquant-results

DATA-DIR holds ``vision/gtsrb-train-subset.tar.gz`` (class folders of PPM images) and ``text/sst2/`` (train.tsv, dev.tsv
and test.tsv: sentence, tab, label). OUTPUT gets results.json, table.md and plot.svg, and a folder ``runs`` with the
data and every report, which is private where the data is. A stopped run goes on where it was when the same command is
given again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums of one thread are the same bits each time

import measuring
import records
import settings
import showing

from privctl.domain.errors import PrivctlError
from privctl.storage.atomic import write_bytes

Results = dict[str, Any]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ``--quick`` sets those that make the grid large, where they are not given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make or to go on in")
    parser.add_argument("--quick", action="store_true", help="one seed, one fraction, few examples: about two minutes")
    parser.add_argument("--tasks", nargs="+", choices=list(settings.TRAININGS), default=list(settings.TRAININGS))
    parser.add_argument("--fractions", type=float, nargs="+", help="of the layers; default: 0.5 0.75 0.9")
    parser.add_argument("--seeds", type=int, help="how often each cell is run (default: 3, with --quick 1)")
    parser.add_argument("--statics", type=int, help="how many static choices are drawn (default: 4, with --quick 1)")
    parser.add_argument("--examples", type=int, help="of each task at most (default: all, with --quick 300)")
    parser.add_argument("--show-only", action="store_true", help="make table and plot anew from results.json")
    options = parser.parse_args(arguments)
    usual: dict[str, tuple[Any, Any]] = {
        "fractions": (list(settings.FRACTIONS), [0.75]),
        "seeds": (3, 1),
        "statics": (4, 1),
        "examples": (None, 300),
    }
    for name, (full, quick) in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    return options


def begun(options: argparse.Namespace, place: Path) -> Results:
    """The results so far; SystemExit where they are of other settings."""
    asked = {
        "format": settings.FORMAT,
        "epsilon": settings.EPSILON,
        "delta": settings.DELTA,
        "examples": options.examples,
        "trainings": {
            name: {key: getattr(found, key) for key in found.__slots__} for name, found in settings.TRAININGS.items()
        },
    }
    if place.is_file():
        found: Results = json.loads(place.read_text(encoding="utf-8"))
        if found["settings"] != asked:
            raise SystemExit(f"{place} has results of other settings; give their settings or another --output")
        return found
    return {"settings": asked, "measured_with": machine(), "examples": {}, "runs": []}


def machine() -> Results:
    """What times depend on."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "python": platform.python_version(),
        "torch": version("torch"),
        "privctl": version("privctl"),
    }


def tell(text: str) -> None:
    """One line of progress on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def measure(options: argparse.Namespace, results: Results, place: Path) -> None:
    """Run every cell of the grid that ``results`` lacks."""
    runs = options.output / "runs"
    made = {
        "signs": lambda: records.signs(options.data_dir / records.SIGNS, runs / "signs", options.examples),
        "sentences": lambda: records.sentences(
            options.data_dir / records.SENTENCES, runs / "sentences", options.examples
        ),
    }
    tasks = {name: measuring.pretrained(made[name](), runs) for name in options.tasks}
    results["examples"] |= {name: task.examples for name, task in tasks.items()}
    cells = settings.grid(list(tasks.values()), options.fractions, options.seeds, options.statics)
    known = {row["key"] for row in results["runs"]}
    for i, cell in enumerate(cells, start=1):
        if cell.key not in known:
            row = measuring.measured(tasks[cell.task], cell, runs)
            results["runs"].append(row)
            save(results, place)
            tell(f"{i} of {len(cells)}: {cell.key}: accuracy {row['accuracy']:.3f}, {row['seconds']:.1f} s")


def save(results: Results, place: Path) -> None:
    """Write results, whole or not at all."""
    write_bytes(place, (json.dumps(results, indent=1) + "\n").encode())


def show(results: Results, folder: Path) -> None:
    """Write table and plot."""
    write_bytes(folder / "table.md", showing.table(results).encode())
    write_bytes(folder / "plot.svg", showing.plot(results))
    tell(f"wrote {folder / 'table.md'} and {folder / 'plot.svg'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show."""
    options = parsed(arguments)
    place = options.output / "results.json"
    if options.show_only:
        show(json.loads(place.read_text(encoding="utf-8")), options.output)
        return
    options.output.mkdir(parents=True, exist_ok=True)
    results = begun(options, place)
    measure(options, results, place)
    show(results, options.output)


if __name__ == "__main__":
    try:
        main()
    except (PrivctlError, ValueError, OSError) as fault:
        raise SystemExit(f"run.py: {fault}") from None
    except KeyboardInterrupt:
        raise SystemExit("run.py: stopped; the same command goes on from here") from None
