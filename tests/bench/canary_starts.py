"""Canaries after private training from several starts: does one that already knows such records show more coins?

Annamalai and De Cristofaro (2024) begin with weights that were trained on other records, so that the gradients of the
private ones are small and a canary's stands out. Here DP-SGD begins with a pretrained model, with the same trained
plainly on public records of the private ones' source, and with that trained on other canaries of the same form too.
Each round has its own records, coins and noise; its planted file and its noise's size are the same for every start.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.bench.common import ROOT, publish, save

USUAL, PUBLIC, KNOWN = "pretrained", "and trained on public records", "and on other canaries"
HEADINGS = ("start", "runs", "AUC of canaries", "difference from pretrained", "epsilon at least", "largest")
RECORDS, OTHERS, CANARIES, LONGEST = 150, 600, 301, 80
EPSILON, DELTA = 8.0, 1e-5
_PRIVATE = {"epochs": 6, "batch_size": 150, "learning_rate": 0.005}
_PLAIN = {"epochs": 8, "batch_size": 32, "learning_rate": 0.003}
_REFERENCES = 63


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=6, help="private runs from each start")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the shared data")


def main(options: argparse.Namespace) -> None:
    """Measure and publish, after each round what is known by then."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {USUAL: [], PUBLIC: [], KNOWN: []}
    settings = {
        "records": RECORDS, "public": OTHERS, "canaries": CANARIES, "epsilon": EPSILON, "delta": DELTA,
        "private": _PRIVATE, "plain": _PLAIN,
    }  # fmt: skip
    data = {"settings": settings, "found": found}
    with tempfile.TemporaryDirectory() as folder:
        place, texts = Path(folder), _texts(options.data)
        starts = _starts(options.data / "stories260k", texts[:OTHERS], place)
        for number in range(options.rounds):
            records = random.Random(number).sample(texts[OTHERS:], RECORDS)
            planted = _planted(place / f"round-{number}", records)
            for name, start in starts.items():
                found[name].append(trained_and_audited(start, planted, place))
                print(number, name, found[name][-1], file=sys.stderr, flush=True)
            save("canary-starts", data, options.output)
    publish("canary-starts", HEADINGS, rows(data), data, options.output)


def rows(data: dict[str, Any]) -> list[list[str]]:
    """Means over the rounds, with the difference of AUCs from those of the usual start and its standard error."""
    usual = [each["auc"] for each in data["found"][USUAL]]
    return [
        [
            name, str(len(runs)), f"{fmean(run['auc'] for run in runs):.3f}",
            "" if name == USUAL else _difference([run["auc"] for run in runs], usual),
            f"{fmean(run['epsilon'] for run in runs):.2f}", f"{max(run['epsilon'] for run in runs):.2f}",
        ]
        for name, runs in data["found"].items()
    ]  # fmt: skip


def _difference(areas: Sequence[float], usual: Sequence[float]) -> str:
    from statistics import stdev

    each = [a - b for a, b in zip(areas, usual, strict=True)]
    return f"{fmean(each):+.3f} (standard error {stdev(each) / len(each) ** 0.5:.3f})"


def trained_and_audited(start: Path, planted: tuple[Path, Path], folder: Path) -> dict[str, float]:
    """Private training from ``start``: the AUC of included canaries against the others, and the certified epsilon."""
    import numpy as np
    from safetensors.numpy import load_file

    import privctl
    from audits.canaries.bounds import EITHER
    from audits.statistics.metrics import auc

    records, manifest = planted
    model, report = folder / "private", folder / "audit.report.json"
    privctl.retrain(
        "dp-sgd", start, data=records, output=model, epsilon=EPSILON, delta=DELTA, device="cpu", force=True, **_PRIVATE
    )
    found = privctl.audit(
        model, canaries=manifest, references=_REFERENCES, output=report, device="cpu", no_cache=True, force=True
    )
    tensors = load_file(folder / "audit.scores.safetensors")
    included = tensors["canary.included"].astype(np.bool_)
    score = tensors["canary.score"].astype(np.float64)
    (bound,) = (item for item in found.evidence if item.method == EITHER)
    return {"auc": auc(score[included], score[~included]).value, "epsilon": float(bound.estimate or 0.0)}


def _texts(data: Path) -> list[str]:
    """One description of each command, in an order by chance."""
    with gzip.open(data / "text" / "tldr_pairs.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    texts = sorted({row["page"]: row["instruction"][:LONGEST] for row in rows}.values())
    random.Random(7).shuffle(texts)
    return list(dict.fromkeys(texts))


def _planted(path: Path, records: Sequence[str]) -> tuple[Path, Path]:
    """The planted records and their manifest."""
    from audits.canaries.plant import PlantRequest, plant

    source, output, manifest = (path.with_suffix(suffix) for suffix in (".source.jsonl", ".jsonl", ".canaries.json"))
    _write(source, records)
    plant(PlantRequest(data=source, output=output, manifest=manifest, count=CANARIES, delta=DELTA))
    return output, manifest


def _starts(usual: Path, others: Sequence[str], place: Path) -> dict[str, Path]:
    import privctl

    public, planted = place / "public.jsonl", _planted(place / "other", others)[0]
    _write(public, others)
    starts = {USUAL: usual}
    for name, data, folder in ((PUBLIC, public, "knows-records"), (KNOWN, planted, "knows-canaries")):
        privctl.retrain("plain", usual, data=data, output=place / folder, device="cpu", **_PLAIN)
        starts[name] = place / folder
    return starts


def _write(path: Path, texts: Sequence[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
