"""Secret protection on real text: what holding records back saves in noise, and what noise leaves of secrets.

First, rare words of abstracts are secrets, and a small masked language model is trained from nothing by plans of
several caps, beside plain training and ordinary DP-SGD. Then numbers are planted in beginnings of abstracts, a small
pretrained model is fine-tuned on them under more and more noise, and the audit tries to have them back.

    python examples/secrets/run.py --data-dir ../shared/data -o secrets-results

DATA-DIR holds the model ``stories260k/`` and ``text/20200101-cs.CR.tsv.xz``, a table with a column ``abstract``.
OUTPUT gets results.json, table.md and plot.svg, and a folder ``runs`` with reports, records and books of secrets, which
is private where the records are. A stopped run goes on where it was when the same command is given again.
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

os.environ.setdefault("OMP_NUM_THREADS", "1")

import measuring
import records
import settings
import showing

from privctl.storage.atomic import write_bytes

Results = dict[str, Any]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make or to go on in")
    parser.add_argument("--quick", action="store_true", help="few records, steps, caps and noises: some minutes")
    parser.add_argument("--only", choices=["weights", "extraction"], help="only this experiment")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each kind (default: %(default)s)")
    parser.add_argument("--show-only", action="store_true", help="make table and plot anew from results.json")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    return options


def begun(quick: bool, place: Path) -> Results:
    """The results so far; SystemExit where they are of other settings."""
    asked = {
        "weights": settings.plain(settings.QUICK_WEIGHTS if quick else settings.Weights()),
        "extraction": settings.plain(settings.QUICK_EXTRACTION if quick else settings.Extraction()),
    }
    if place.is_file():
        found: Results = json.loads(place.read_text(encoding="utf-8"))
        if found["settings"] != asked:
            raise SystemExit(f"{place} has results of other settings; give their settings or another --output")
        return found
    made = {"python": platform.python_version(), **{name: version(name) for name in ("torch", "transformers")}}
    return {"settings": asked, "measured_with": made, "weights": None, "extraction": None}


def weights(options: argparse.Namespace, results: Results, place: Path, split: records.Split) -> None:
    """Every training of the first experiment that ``results`` lacks."""
    chosen = settings.QUICK_WEIGHTS if options.quick else settings.Weights()
    folder = place.parent / "runs" / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    if results["weights"] is None:
        words = records.vocabulary(split.public, chosen.vocabulary)
        records.write_lines(folder / "words.txt", words)
        found = measuring.prepare_weights(chosen, folder, split.private, split.test)
        results["weights"] = {**found, "public": len(split.public), "vocabulary": len(words), "runs": []}
        save(results, place)
    state = results["weights"]
    caps = ["none" if row["cap"] is None else repr(row["cap"]) for row in state["caps"][: chosen.caps]]
    made = {(row["key"], row["seed"]) for row in state["runs"]}
    for key, seed in settings.shuffled([settings.PLAIN, settings.UNIFORM, *caps], options.seeds):
        if (key, seed) not in made:
            row = measuring.weighed(chosen, folder, state["caps"], key, seed)
            state["runs"].append(row)
            save(results, place)
            tell(f"{key}, seed {seed}: test loss {row['test_loss']:.4f}, noise {row['noise_multiplier']}")


def extraction(options: argparse.Namespace, results: Results, place: Path, split: records.Split) -> None:
    """Every training of the second experiment that ``results`` lacks; its texts are the private ones' beginnings."""
    chosen = settings.QUICK_EXTRACTION if options.quick else settings.Extraction()
    folder = place.parent / "runs" / "extraction"
    folder.mkdir(parents=True, exist_ok=True)
    if results["extraction"] is None:
        texts = [" ".join(text.split()[: chosen.words]) for text in split.private[: chosen.records]]
        results["extraction"] = {**measuring.prepare_extraction(chosen, folder, texts), "runs": []}
        save(results, place)
    state = results["extraction"]
    made = {(row["noise_multiplier"], row["seed"]) for row in state["runs"]}
    for key, seed in settings.shuffled([repr(noise) for noise in chosen.noises], options.seeds):
        noise = float(key)
        if (noise, seed) not in made:
            base = options.data_dir / records.STORIES
            row = measuring.extracted(chosen, folder, base, state, noise, seed)
            state["runs"].append(row)
            save(results, place)
            tell(f"noise {noise:g}, seed {seed}: told first {row['told'][0]:.3f}, written {row['greedy'][0]:.3f}")


def save(results: Results, place: Path) -> None:
    """Write results, whole or not at all."""
    write_bytes(place, (json.dumps(results, indent=1) + "\n").encode())


def show(results: Results, folder: Path) -> None:
    """Write table and plot."""
    write_bytes(folder / "table.md", showing.table(results).encode())
    write_bytes(folder / "plot.svg", showing.plot(results))
    tell(f"wrote {folder / 'table.md'} and {folder / 'plot.svg'}")


def tell(text: str) -> None:
    """One line of progress on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show."""
    options = parsed(arguments)
    place = options.output / "results.json"
    if options.show_only:
        show(json.loads(place.read_text(encoding="utf-8")), options.output)
        return
    options.output.mkdir(parents=True, exist_ok=True)
    results = begun(options.quick, place)
    chosen = settings.QUICK_WEIGHTS if options.quick else settings.Weights()
    texts = records.abstracts(options.data_dir / records.ABSTRACTS)
    split = records.split(texts, chosen.private, chosen.test, chosen.words)
    if options.only != "extraction":
        weights(options, results, place, split)
    if options.only != "weights":
        extraction(options, results, place, split)
    show(results, options.output)


if __name__ == "__main__":
    try:
        main()
    except (measuring.CommandFailed, ValueError, OSError) as fault:
        raise SystemExit(f"run.py: {fault}") from None
    except KeyboardInterrupt:
        raise SystemExit("run.py: stopped; the same command goes on from here") from None
