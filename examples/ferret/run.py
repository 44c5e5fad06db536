"""FERRET beside DP-SGD and plain training: quality, membership attacks, time, and what is guaranteed.

A small pretrained language model is fine-tuned by every method, at several numbers of epochs and several epsilons; each
result is attacked with the records it was trained on. Before that, each method's learning rate is chosen on records
that nothing else uses; no guarantee counts this choice.

    python examples/ferret/run.py --data-dir ../shared/data -o ferret-results

DATA-DIR holds the model ``stories260k/`` and ``text/tldr_pairs.jsonl.gz``, JSON objects {page, instruction, output}.
OUTPUT gets results.json, table.md and plot.svg, and a folder ``runs`` with every report and the records, which is
private where the records are. A stopped run goes on where it was when the same command is given again.
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

os.environ.setdefault("OMP_NUM_THREADS", "1")  # times of one thread vary less

import measuring
import records
import settings
import showing

from privctl.storage.atomic import write_bytes

Results = dict[str, Any]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ``--quick`` sets those that make the grid large, where they are not given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make or to go on in")
    parser.add_argument("--quick", action="store_true", help="one epsilon, one epoch, few records: some minutes")
    parser.add_argument("--members", type=int, help="records to train on, and as many others (default: 2000)")
    parser.add_argument("--tuning", type=int, default=1000, help="records to choose learning rates on; default: 1000")
    parser.add_argument("--batch-size", type=int, default=10, help="records a step (default: %(default)s)")
    parser.add_argument("--max-length", type=int, default=48, help="tokens kept of a record (default: %(default)s)")
    parser.add_argument("--epochs", type=int, nargs="+", help="default: 1 3 5")
    parser.add_argument("--epsilons", type=float, nargs="+", help="default: 0.1 0.5 1 2")
    parser.add_argument("--methods", nargs="+", choices=list(settings.METHODS), default=list(settings.METHODS))
    parser.add_argument("--seeds", type=int, help="how often each cell is run (default: 2, with --quick 1)")
    parser.add_argument("--no-tuning", action="store_true", help="take learning rates as settings.py has them")
    parser.add_argument("--show-only", action="store_true", help="make table and plot anew from results.json")
    options = parser.parse_args(arguments)
    usual: dict[str, tuple[Any, Any]] = {
        "members": (2000, 300),
        "epochs": ([1, 3, 5], [1]),
        "epsilons": ([0.1, 0.5, 1.0, 2.0], [1.0]),
        "seeds": (2, 1),
    }
    for name, (full, quick) in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    options.no_tuning = options.no_tuning or options.quick
    return options


def begun(options: argparse.Namespace, place: Path) -> Results:
    """The results so far; SystemExit where they are of other settings."""
    asked = {
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
    if place.is_file():
        found: Results = json.loads(place.read_text(encoding="utf-8"))
        if found["settings"] != asked:
            raise SystemExit(f"{place} has results of other settings; give their settings or another --output")
        return found
    return {"settings": asked, "measured_with": machine(), "tuning": [], "base": None, "runs": [], "left_out": []}


def machine() -> Results:
    """What times depend on."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "python": platform.python_version(),
        "torch": version("torch"),
        "privctl": version("privctl"),
    }


def best_rate(results: Results, method: str) -> float:
    """The tuned learning rate of a method, or its default where nothing was tuned."""
    rows = [row for row in results["tuning"] if row["method"] == method]
    if not rows:
        return settings.METHODS[method].default_rate
    return float(min(rows, key=lambda row: row["perplexity"])["learning_rate"])


def tell(text: str) -> None:
    """One line of progress on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def tune(options: argparse.Namespace, work: measuring.Work, results: Results, place: Path) -> None:
    """Try every learning rate that ``results`` lacks."""
    tried = {(row["method"], row["learning_rate"]) for row in results["tuning"]}
    for cell, rate in settings.tuning(options.methods):
        if (cell.method, rate) not in tried:
            found = measuring.tuned(work, cell, rate)
            results["tuning"].append({"method": cell.method, "learning_rate": rate, "perplexity": found})
            save(results, place)
            tell(f"tuning {cell.method}: learning rate {rate:g} gives perplexity {found:.4g}")


def measure(options: argparse.Namespace, work: measuring.Work, results: Results, place: Path) -> None:
    """Run every cell of the grid that ``results`` lacks, after the model that nothing was done to."""
    measuring.warm_up(work, options.methods)
    if results["base"] is None:
        results["base"] = measuring.judge(work, work.model, "base")
        save(results, place)
    asked = settings.grid(options.methods, options.epochs, options.epsilons, options.seeds)
    reasons = [reason for cell in asked if (reason := settings.left_out(cell))]
    results["left_out"] = sorted({*results["left_out"], *reasons})
    cells = [cell for cell in asked if not settings.left_out(cell)]
    made = {row["key"] for row in results["runs"]}
    for i, cell in enumerate(cells, start=1):
        if cell.key not in made:
            row = measuring.measured(work, cell, best_rate(results, cell.method))
            results["runs"].append(row)
            save(results, place)
            tell(
                f"{i} of {len(cells)}: {cell.key}: perplexity {row['perplexity']:.4g}, "
                f"AUC {row['auc_best'][0]:.3f}, {row['seconds']:.1f} s"
            )


def save(results: Results, place: Path) -> None:
    """Write results, whole or not at all."""
    write_bytes(place, (json.dumps(results, indent=1) + "\n").encode())


def show(results: Results, folder: Path) -> None:
    """Write table and plot."""
    write_bytes(folder / "table.md", showing.table(results).encode())
    write_bytes(folder / "plot.svg", showing.plot(results))
    tell(f"wrote {folder / 'table.md'} and {folder / 'plot.svg'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune, measure, show."""
    options = parsed(arguments)
    place = options.output / "results.json"
    if options.show_only:
        show(json.loads(place.read_text(encoding="utf-8")), options.output)
        return
    options.output.mkdir(parents=True, exist_ok=True)
    results = begun(options, place)
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
        tune(options, work, results, place)
    measure(options, work, results, place)
    show(results, options.output)


if __name__ == "__main__":
    try:
        main()
    except (measuring.CommandFailed, ValueError, OSError) as fault:
        raise SystemExit(f"run.py: {fault}") from None
    except KeyboardInterrupt:
        raise SystemExit("run.py: stopped; the same command goes on from here") from None
