"""Steps of several parties, each in a process of its own, which take turns: one makes a step while the others wait.

What one party leaves of the heap, of which the C library keeps more or less, then changes no other party's page faults.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Self

from tests.bench.common import forget_peak, status_mib

#: The first step of privctl also compares with autograd, and the second still finds the heap as that left it.
_WARMING = 2
#: The ends of pipes that are the benchmark's own; a forked process closes its copies.
_own_ends: set[int] = set()

#: What one step took: ``seconds``, those of the ``processor``, page ``faults``, and the process's ``peak_mib`` in it
#: where that was asked for.
Taken = dict[str, float]


def in_turns(
    makers: Mapping[str, Callable[[], Callable[[], None]]], rounds: int, *, peaks: bool = False
) -> dict[str, list[Taken]]:
    """What each party's steps took, one a round; each round begins with the next party.

    Each of ``makers`` is called in its process, with one thread, and gives the step. ``peaks`` also takes the peak of
    its memory, which needs Linux's own account: gVisor, in which some GPUs are lent, keeps none. Raises RuntimeError
    where one fails.
    """
    found: dict[str, list[Taken]] = {name: [] for name in makers}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(_Process(name, make, peaks)) for name, make in makers.items()}
        for process in processes.values():
            for _ in range(_WARMING):
                process.step()
        names = list(makers)
        for i in range(rounds):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                found[name].append(processes[name].step())
    return found


class _Process:
    """A forked process that makes a step whenever it is asked to."""

    def __init__(self, name: str, make: Callable[[], Callable[[], None]], peaks: bool) -> None:
        self._name = name
        asked, answered = os.pipe(), os.pipe()
        _own_ends.update((asked[1], answered[0]))
        self._child = os.fork()
        if self._child == 0:
            for end in _own_ends:  # those of earlier processes too, which would wait for this one to end
                os.close(end)
            try:
                _serve(make, asked[0], answered[1], peaks)
            finally:
                os._exit(0)
        os.close(asked[0])
        os.close(answered[1])
        self._asking, self._answers = os.fdopen(asked[1], "wb", buffering=0), os.fdopen(answered[0])

    def step(self) -> Taken:
        """What one step took."""
        try:
            self._asking.write(b"s")
            line = self._answers.readline()
        except BrokenPipeError:
            line = self._answers.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"fails": "its process ended"}
        if "fails" in answer:
            raise RuntimeError(f"{self._name}: {answer['fails']}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._asking, self._answers):
            _own_ends.remove(end.fileno())
            end.close()
        os.waitpid(self._child, 0)


def _serve(make: Callable[[], Callable[[], None]], asked: int, answered: int, peaks: bool) -> None:
    """Make a step for each byte that comes, until none can come any more or one fails."""
    import torch

    torch.set_num_threads(1)
    with os.fdopen(answered, "w") as answers:
        try:
            step = make()
            while os.read(asked, 1):
                print(json.dumps(_taken(step, peaks)), file=answers, flush=True)
        except Exception as fault:
            fails = f"{type(fault).__name__}: {fault}".split("\n")[0][:200]
            print(json.dumps({"fails": fails}), file=answers, flush=True)


def _taken(step: Callable[[], None], peaks: bool) -> Taken:
    if peaks:
        forget_peak()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    started, used = time.perf_counter(), time.process_time()
    step()
    seconds, processor = time.perf_counter() - started, time.process_time() - used
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    taken = {"seconds": seconds, "processor": processor, "faults": faults}
    return {**taken, "peak_mib": status_mib("VmHWM")} if peaks else taken
