"""Private and non-private training steps with memory kept between them and not, each party in a process of its own.

What the C library does with freed memory is a setting of a whole process. The processes take turns, a step each a
round, on one thread; ratios are between processor times of the same round, which other processes of the machine
disturb least.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.common import publish, save
from tests.bench.step_processes import Taken, in_turns

if TYPE_CHECKING:
    from tests.bench.dp_sgd_parties import Step
    from tests.bench.dp_sgd_shapes import Shape

#: Each process: whose step it makes, and whether memory that is freed stays with it.
PROCESSES = {
    "non-private": ("non-private", False),
    "non-private, kept": ("non-private", True),
    "privctl": ("privctl", False),
    "privctl, kept": ("privctl", True),
}
#: What holds to the end of a forked process.
_of_this_process = ExitStack()

Result = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=7, help="models whose step takes seconds take a third of them")
    parser.add_argument("--shape", action="append", help="only shapes whose names begin so; repeatable")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    from tests.bench.dp_sgd import load_parties

    load_parties()
    from tests.bench.dp_sgd_shapes import SHAPES

    prefixes = tuple(options.shape or [""])
    data: Result = {"rounds": options.rounds, "threads": 1, "shapes": []}
    for name, shape in SHAPES.items():
        if name.startswith(prefixes):
            print(name, file=sys.stderr, flush=True)
            rounds = max(1, options.rounds // 3) if shape.fewer_rounds else options.rounds
            data["shapes"].append({"shape": name, "rounds": rounds, "processes": measured(shape, rounds)})
            save("dp-sgd-processes", data, options.output)  # what is known, should the next shape take too long
    headings = [
        "shape",
        "process",
        "ms",
        "cpu ms",
        "cpu / non-private",
        "/ with the same setting",
        "faults",
        "peak MiB",
    ]
    publish("dp-sgd-processes", headings, list(_rows(data["shapes"])), data, options.output)


def measured(shape: Shape, rounds: int) -> dict[str, Result]:
    """What each process took of each round."""
    makers = {name: _maker(shape, party, kept=kept) for name, (party, kept) in PROCESSES.items()}
    found = in_turns(makers, rounds, peaks=True)
    return {name: _summary(name, found) for name in PROCESSES}


def _summary(name: str, found: dict[str, list[Taken]]) -> Result:
    alike = "non-private, kept" if PROCESSES[name][1] else "non-private"
    steps = found[name]
    return {
        "median_s": median(step["seconds"] for step in steps),
        "processor_s": median(step["processor"] for step in steps),
        "to_non_private": _ratio(steps, found["non-private"]),
        "to_non_private_alike": _ratio(steps, found[alike]),
        "page_faults": median(step["faults"] for step in steps),
        "peak_mib": max(step["peak_mib"] for step in steps),
        "processor_seconds": [step["processor"] for step in steps],
    }


def _ratio(steps: list[Taken], base: list[Taken]) -> float:
    return median(a["processor"] / b["processor"] for a, b in zip(steps, base, strict=True))


def _rows(shapes: list[Result]) -> list[list[str]]:
    return [
        [
            one["shape"], name, f"{1000 * found['median_s']:.0f}", f"{1000 * found['processor_s']:.0f}",
            f"{found['to_non_private']:.2f}", f"{found['to_non_private_alike']:.2f}", f"{found['page_faults']:,.0f}",
            f"{found['peak_mib']:.0f}",
        ]
        for one in shapes
        for name, found in one["processes"].items()
    ]  # fmt: skip


def _maker(shape: Shape, party: str, *, kept: bool) -> Callable[[], Step]:
    """Makes the step of ``party``, in the process that is to make it."""

    def make() -> Step:
        import torch

        from privctl.models.kept_memory import kept_memory
        from tests.bench.dp_sgd import NOISE, step_of, work_of

        if kept:
            _of_this_process.enter_context(kept_memory(torch.device("cpu")))
        return step_of(work_of(shape, "cpu", (shape.examples, shape.positions), noise=NOISE), party)

    return make
