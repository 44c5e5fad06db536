"""Which architectures of transformers privctl and Opacus train with the right gradient, each tiny and random.

Right is a clipped sum of six different records, three of them clipped, that is within 1e-3 of that of gradients found
one record at a time. With ``--bf16`` it is that of twenty records, within a tenth, under autocast to bfloat16, and
Opacus is not tried. Results are kept after each pair, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.common import RESULTS, forked, publish, save

if TYPE_CHECKING:
    from privctl.train.preparation.job import TrainingJob
    from tests.zoo.gradients import Gradient, Passes

RIGHT, WRONG, REFUSED, CRASHED, NONE = "right", "wrong", "refused", "crashed", "not built"
#: Of Opacus: an error, or right only after scales and shifts of batch normalisation were frozen too.
FAILS, LESS, UNTRIED = "fails", "right, batch normalisation frozen", "not tried"
#: Of the processor, for each pair and for each call of Opacus, and of memory beyond what this process has.
LIMITS = {"seconds": 40, "mib": 4096}


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--only", action="append", help="only this task, architecture, or task/architecture")
    parser.add_argument("--bf16", action="store_true", help="under autocast to bfloat16, privctl alone")
    parser.add_argument("--afresh", action="store_true", help="measure pairs again that the results have already")


def main(options: argparse.Namespace) -> None:
    """Go through the pairs that the results lack, and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    from tests.zoo.shrink import pairs

    torch.set_num_threads(1)
    measured("causal-lm", "gpt2")  # so that what every process needs is imported once
    measured("image-classification", "vit")
    gc.freeze()  # of which processes then copy less
    name = "coverage-bf16" if options.bf16 else "coverage"
    path = Path(options.output) if options.output else RESULTS / f"{name}.json"
    rows = _stored(path)
    for task, kind in pairs():
        if options.only and not {task, kind, f"{task}/{kind}"} & set(options.only):
            continue
        if (task, kind) in rows and not options.afresh:
            continue
        started = time.perf_counter()
        found = forked(partial(_silenced, partial(measured, task, kind, half=options.bf16)), **LIMITS)
        if "fails" in found:  # the process was ended, or something outside both parties went wrong
            found = {"privctl": {"outcome": CRASHED, "reason": found["fails"]}, "opacus": {}}
        rows[task, kind] = {"task": task, "architecture": kind, **found}
        save(name, _data(rows), str(path))
        ends = " ".join(f"{mode} {each['outcome']}" for mode, each in found["opacus"].items())
        seconds = time.perf_counter() - started
        print(
            f"{len(rows)} {task} {kind}: {found['privctl']['outcome']}; {ends} ({seconds:.0f} s)",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    publish(name, HEADINGS, table_rows(list(rows.values())), _data(rows), str(path))


def _stored(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    if not path.exists():
        return {}
    return {(row["task"], row["architecture"]): row for row in json.loads(path.read_text())["rows"]}


def _data(rows: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    from tests.zoo.shrink import pairs

    versions = {name: version(name) for name in ("transformers", "opacus", "torch")}
    every = list(pairs())
    return {"versions": versions, "pairs": len(every), "rows": [rows[pair] for pair in every if pair in rows]}


def measured(task: str, kind: str, *, half: bool = False) -> dict[str, Any]:
    """Both parties on one pair, privctl alone in ``half`` precision; for a process of its own."""
    from privctl.domain.errors import PrivctlError
    from tests.bench.coverage_opacus import tried
    from tests.zoo import gradients
    from tests.zoo.shrink import Unbuildable, build, one_line

    passes = gradients.HALF if half else gradients.FULL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            build(task, kind, folder / "model")
            ours, job, alone = _by_privctl(task, folder, passes)
        except Unbuildable as error:
            return {"privctl": {"outcome": NONE, "reason": one_line(error)}, "opacus": {}}
        except PrivctlError as error:
            return {"privctl": {"outcome": REFUSED, "reason": one_line(error)}, "opacus": {}}
        if half:
            return {"privctl": ours, "opacus": {}}
        theirs = tried(
            job.model.network,
            lambda called: gradients.losses(job.task, called, range(passes.records)),
            alone,
            job.model.frozen_norms,
            LIMITS,
        )
        return {"privctl": ours, "opacus": theirs}


def _by_privctl(task: str, folder: Path, passes: Passes) -> tuple[dict[str, Any], TrainingJob, list[Gradient]]:
    """How privctl's sum compares, with the job and the gradients found alone.

    Where it is not right, or fails, the contribution test is run, by which a training would pad or refuse.
    """
    from tests.zoo import gradients

    for tested in (False, True):
        try:
            job = gradients.prepared(task, folder, tested=tested, passes=passes)
            alone = gradients.alone(job, passes)
            error = gradients.of_clipped_sum(job, alone, passes)
        except Exception:
            if tested:
                raise
            continue
        if error <= passes.tolerance:
            break
    job.model.network.zero_grad()
    outcome = RIGHT if error <= passes.tolerance else WRONG
    return {"outcome": outcome, "difference": error, "contribution_test": tested}, job, alone


def _silenced(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    return work()


HEADINGS = (
    "task", "pairs", "privctl right", "privctl refuses", "privctl wrong", "Opacus right",
    "Opacus right with less trained", "Opacus wrong", "Opacus fails", "Opacus not tried",
)  # fmt: skip


def best(opacus: dict[str, Any]) -> str:
    """How Opacus ended in its best mode: "wrong" where no mode is right and one is wrong without an error."""
    if not opacus:
        return UNTRIED
    ends = {each["outcome"] for each in opacus.values()}
    return next((each for each in (RIGHT, LESS, WRONG) if each in ends), FAILS)


def table_rows(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The counts by task, and of all; pairs that could not be built are left out."""
    built = [row for row in rows if row["privctl"]["outcome"] != NONE]
    tasks = list(dict.fromkeys(row["task"] for row in built))
    found = []
    for task in [*tasks, "all"]:
        of = [row for row in built if task in (row["task"], "all")]
        ours, theirs = Counter(row["privctl"]["outcome"] for row in of), Counter(best(row["opacus"]) for row in of)
        counts = [ours[RIGHT], ours[REFUSED], ours[WRONG] + ours[CRASHED]]
        counts += [theirs[RIGHT], theirs[LESS], theirs[WRONG], theirs[FAILS], theirs[UNTRIED]]
        found.append([task, str(len(of)), *map(str, counts)])
    return found


def counts(rows: list[dict[str, Any]]) -> tuple[int, int, int, int]:
    """Pairs that could be built; of these, those right by privctl, by Opacus, and by Opacus with less trained."""
    built = [row for row in rows if row["privctl"]["outcome"] != NONE]
    ours = sum(row["privctl"]["outcome"] == RIGHT for row in built)
    theirs = Counter(best(row["opacus"]) for row in built)
    return len(built), ours, theirs[RIGHT], theirs[LESS]
