"""Time of membership attacks on targets 512 wide, beside other projects'.

On smaller models a pass is mostly what is not a product of matrices. Targets have random weights that were trained for
one pass, as time does not depend on them. Parties take turns, at equal records, in one thread each.

Other projects run outside of this one: ``--others`` is a command that reads lines ``PARTY<tab>SOURCE`` and answers
each with a line of JSON, ``{"cpu": seconds, "wall": seconds}``, of all passes and attacks of that party on the target
``SOURCE/plain`` in ``--folder``, for the records in ``SOURCE/members.*`` and ``SOURCE/nonmembers.*``. Other lines are
passed over. Texts have a second model of the same shape, ``SOURCE/reference``; sources with shadow models have
these in ``SOURCE/shadows``, and their passes count for nobody.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.audit_targets import SIDES, SOURCES, Source, shadow_models, write_sides
from tests.bench.common import RESULTS, ROOT, publish, save

_DATA = ROOT.parent / "shared" / "data"
_LLAMA = {
    "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 64,
}  # fmt: skip
_VIT = {
    "architectures": ["ViTForImageClassification"], "model_type": "vit", "image_size": 32, "patch_size": 8,
    "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 2048,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_channels": 3,
    "id2label": {str(i): str(i) for i in range(10)}, "label2id": {str(i): i for i in range(10)},
}  # fmt: skip
#: Records a side.
RECORDS = {
    "commands": 100, "dialogues": 100, "abstracts": 100, "sentences": 200, "images": 1000,
    "images with shadow models": 200, "sentences with shadow models": 60, "commands with shadow models": 30,
}  # fmt: skip
WITH_SHADOWS = " with shadow models"
#: Whose reader of texts pads each to 512 tokens; by itself the party has them padded to the longest.
OWN_READER = "Privacy Meter, own reader"
#: Who attacks what; those of ``REFERENCE`` score texts by a second model too.
PARTIES = ("Privacy Meter", OWN_READER, "PrivacyGuard", "mimir", "LeakPro")
REFERENCE = ("PrivacyGuard", "mimir")
OURS = "privctl"
HEADINGS = (
    "target", "records", "beside", "its processor s", "privctl's scores in bfloat16", "by the clock", "in float32",
)  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--data", type=Path, default=_DATA, help="folder of the shared data")
    parser.add_argument("--folder", type=Path, required=True, help="where targets are kept")
    parser.add_argument("--sources", nargs="+", choices=RECORDS, default=list(RECORDS), help="of the records")
    parser.add_argument("--rounds", type=int, default=3, help="in which parties take turns")
    parser.add_argument("--beside", nargs="+", choices=PARTIES, default=PARTIES, help="only these other projects")
    parser.add_argument("--others", help="command that runs other projects' attacks, as lines ask it to")


def main(options: argparse.Namespace) -> None:
    """Train what is not there yet, measure, and publish; sources that are not asked for keep their result."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    path = Path(options.output) if options.output else RESULTS / "audit-wide.json"
    targets: dict[str, Any] = json.loads(path.read_text())["targets"] if path.exists() else {}
    own, others = Own(options.folder), Others(options.others) if options.others else None
    for name in options.sources:
        source = source_named(name)
        _make(source, options.data, options.folder)
        known = {**targets, name: measured(source, options.rounds, own, others, options.beside)}
        targets = {record: known[record] for record in RECORDS if record in known}
        save("audit-wide", {"targets": targets}, options.output)
    if others is not None:
        others.close()
    publish("audit-wide", HEADINGS, rows(targets), {"targets": targets}, options.output)


def source_named(name: str) -> Source:
    """The source of a target, with the records and training of this bench."""
    known = {source.name: source for source in SOURCES}
    plain = known[name.removesuffix(WITH_SHADOWS)]
    settings = {**plain.settings, "epochs": 1, "learning_rate": 0.001, "batch_size": 16, "from_scratch": True}
    shadows = name.endswith(WITH_SHADOWS)
    return replace(plain, name=name, records=RECORDS[name], settings=settings, shadows=shadows, methods=("plain",))


def parties_of(source: Source) -> Iterator[str]:
    """Who attacks the source's target: LeakPro only beside shadow models, ``mimir`` and ``OWN_READER`` only texts."""
    for party in PARTIES:
        if party in ("mimir", OWN_READER) and ("task" in source.settings or source.shadows):
            continue
        if party != "LeakPro" or source.shadows:
            yield party


def _make(source: Source, data: Path, folder: Path) -> None:
    """The target, of texts the reference model, and shadow models, unless they are there."""
    import privctl

    write_sides(source, data, folder)
    place = folder / source.name
    start = place / "start"
    start.mkdir(exist_ok=True)
    config = _VIT
    if source.suffix != "npz":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(data / "stories260k" / name, start / name)
        config = {**json.loads((data / "stories260k" / "config.json").read_text()), **_LLAMA}
    (start / "config.json").write_text(json.dumps(config))
    models = {"plain": "members", **({} if "task" in source.settings else {"reference": "others"})}
    for name, side in models.items():
        if not (place / name).exists():
            path = source.side(folder, side)
            privctl.retrain("plain", start, data=path, output=place / name, **source.settings)
    shadow_models(source, start, folder)


class Own:
    """privctl on the targets in ``folder``; models are loaded once, as other projects' are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[tuple[str, str, str], Any] = {}

    def seconds(self, source: Source) -> dict[str, float]:
        """Of passes and scores in each format, and of the reference model's in bfloat16."""
        from audits.membership.records import prepare
        from audits.scores.subject import read

        files = [source.side(self._folder, side) for side in SIDES[:2]]
        subject = self._open(source, "plain", "bfloat16")[1].subject
        rows = prepare(subject, *(read(subject, file) for file in files)).rows
        variants = {"float32": ("plain", "float32"), "bfloat16": ("plain", "bfloat16")}
        variants |= {"reference": ("reference", "bfloat16")} if "task" not in source.settings else {}
        found: dict[str, float] = {}
        for name, (model, precision) in variants.items():
            scorer, opened = self._open(source, model, precision)
            found |= _timed(name, partial(scorer.score, opened, rows))
        return found

    def _open(self, source: Source, model: str, precision: str) -> Any:
        """The scorer and the opened model."""
        from audits.model_scorer import ModelScorer
        from privctl.domain.progress import unseen
        from privctl.models.choices import FloatFormat
        from privctl.parallel import ALONE

        key = (source.name, model, precision)
        if key not in self._opened:
            scorer = ModelScorer(
                cache=None, device="cpu", workers=ALONE, progress=unseen, precision=FloatFormat(precision)
            )
            path = self._folder / source.name / model
            self._opened[key] = scorer, scorer.open(path, self._folder / "audit.report.json")
        return self._opened[key]


def _timed(name: str, work: Callable[[], object]) -> dict[str, float]:
    began = time.process_time(), time.perf_counter()
    work()
    return {f"{name} cpu": time.process_time() - began[0], f"{name} wall": time.perf_counter() - began[1]}


class Others:
    """The process that runs other projects' attacks."""

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def seconds(self, party: str, source: str) -> dict[str, float]:
        """What it says of ``party`` on ``source``. Raises RuntimeError where it says nothing more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{party}\t{source}\n")
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found
        raise RuntimeError(f"the command of --others ended at {party} on {source}")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measured(
    source: Source, rounds: int, own: Own, others: Others | None, beside: Sequence[str] = PARTIES
) -> dict[str, Any]:
    """Processor and wall-clock seconds of each party in each round."""
    variants: dict[str, Callable[[], dict[str, float]]] = {OURS: lambda: own.seconds(source)}
    if others is not None:
        variants |= {
            party: partial(others.seconds, party, source.name) for party in parties_of(source) if party in beside
        }
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    names = list(variants)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found = variants[name]()
            print(source.name, i, name, found, file=sys.stderr, flush=True)
            spent[name].append(found)
    texts = "task" not in source.settings
    return {"records": 2 * source.records, "texts": texts, "shadows": source.shadows, "parties": spent}


def ratios(target: Mapping[str, Any], party: str, precision: str, clock: str = "cpu") -> list[float]:
    """privctl's seconds in ``variant`` by those of ``party`` in the same round, with the same number of models."""
    models = 2 if target["texts"] and party in REFERENCE else 1
    found = []
    for own, other in zip(target["parties"][OURS], target["parties"][party], strict=True):
        second = "reference" if precision == "bfloat16" else precision
        spent = own[f"{precision} {clock}"] + (own[f"{second} {clock}"] if models == 2 else 0.0)
        found.append(spent / other[clock])
    return found


def rows(targets: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    """Of each target and other party its seconds, and what privctl's are of these: median, least and most."""
    table = []
    for name, target in targets.items():
        for party, spent in target["parties"].items():
            if party != OURS:
                cells = [ratios(target, party, "bfloat16"), ratios(target, party, "bfloat16", "wall")]
                cells.append(ratios(target, party, "float32"))
                table.append([
                    name, str(target["records"]), party, f"{median(each['cpu'] for each in spent):.3g}",
                    *(f"{median(cell):.2f} ({min(cell):.2f} to {max(cell):.2f})" for cell in cells),
                ])  # fmt: skip
    return table
