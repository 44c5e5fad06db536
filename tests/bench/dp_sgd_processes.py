"""Private and non-private training steps with memory kept between them and not, each party in a process of its own.

What the C library does with freed memory is a setting of a whole process, so the parties of ``dp_sgd``, which share
one, cannot be compared under two settings. Here the processes take turns, a step each a round, on one thread; ratios
are between processor times of the same round, which other processes of the machine disturb least.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from tests.bench.common import forget_peak, publish, save, status_mib

if TYPE_CHECKING:
    from tests.bench.dp_sgd_shapes import Shape

#: Each process: whose step it makes, and whether memory that is freed stays with it.
PROCESSES = {
    "non-private": ("non-private", False),
    "non-private, kept": ("non-private", True),
    "privctl": ("privctl", False),
    "privctl, kept": ("privctl", True),
}
_WARMING = 2
#: The ends of pipes that are the benchmark's own; a forked process closes its copies.
_own_ends: set[int] = set()

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
    """What each process took of each round, in turns of which each round begins with the next process."""
    found: dict[str, list[Result]] = {name: [] for name in PROCESSES}
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(_Process(shape, party, kept=kept)) for name, (party, kept) in PROCESSES.items()
        }
        for process in processes.values():
            for _ in range(_WARMING):
                process.step()
        names = list(PROCESSES)
        for i in range(rounds):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                found[name].append(processes[name].step())
    return {name: _summary(name, found) for name in PROCESSES}


def _summary(name: str, found: dict[str, list[Result]]) -> Result:
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


def _ratio(steps: list[Result], base: list[Result]) -> float:
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


class _Process:
    """A forked process that makes a step of ``party`` whenever it is asked to."""

    def __init__(self, shape: Shape, party: str, *, kept: bool) -> None:
        asked, answered = os.pipe(), os.pipe()
        _own_ends.update((asked[1], answered[0]))
        self._child = os.fork()
        if self._child == 0:
            for end in _own_ends:  # those of earlier processes too, which would wait for this one to end
                os.close(end)
            try:
                _serve(shape, party, kept, asked[0], answered[1])
            finally:
                os._exit(0)
        os.close(asked[0])
        os.close(answered[1])
        self._asking, self._answers = os.fdopen(asked[1], "wb", buffering=0), os.fdopen(answered[0])

    def step(self) -> Result:
        """What one step took; raises RuntimeError where the process has ended."""
        self._asking.write(b"s")
        line = self._answers.readline()
        if not line:
            raise RuntimeError("a process of the benchmark ended early; its messages are above")
        result: Result = json.loads(line)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._asking, self._answers):
            _own_ends.remove(end.fileno())
            end.close()
        os.waitpid(self._child, 0)


def _serve(shape: Shape, party: str, kept: bool, asked: int, answered: int) -> None:
    """Make a step for each byte that comes, until none can come any more."""
    import torch

    from privctl.train.network.kept_memory import kept_memory
    from tests.bench.dp_sgd import NOISE, step_of, work_of

    torch.set_num_threads(1)
    with ExitStack() as stack, os.fdopen(answered, "w") as answers:
        if kept:
            stack.enter_context(kept_memory(torch.device("cpu")))
        step = step_of(work_of(shape, "cpu", (shape.examples, shape.positions), noise=NOISE), party)
        while os.read(asked, 1):
            forget_peak()
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            started, used = time.perf_counter(), time.process_time()
            step()
            taken = {"seconds": time.perf_counter() - started, "processor": time.process_time() - used}
            taken["faults"] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            answers.write(json.dumps({**taken, "peak_mib": status_mib("VmHWM")}) + "\n")
            answers.flush()
