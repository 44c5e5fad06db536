"""Timing whole processes fairly: interleaved rounds, ratios within a round, peak memory from the kernel.

This process imports nothing big, because a child's peak memory as the kernel counts it is never below what its parent
held when it was started.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from privctl.show.text.style import table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"
_LOAD = os.getloadavg()[0]  # when the benchmark began: at its end it is the benchmark's own
_LIBRARIES = ("privctl", "numpy", "torch", "safetensors", "cryptography", "blake3", "click", "llvmlite")


@dataclass(frozen=True, slots=True)
class Run:
    """One finished process: wall-clock and processor seconds, and the most memory it held."""

    seconds: float
    cpu: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing the work; ``prepare`` runs before the clock starts."""

    command: Sequence[str]
    prepare: Callable[[], None] = lambda: None


@cache
def _compiled_modules() -> str:
    """A folder for Python's compiled modules, which an installation has beside their sources; removed at the end."""
    folder = tempfile.mkdtemp(prefix="bench-modules-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def execute(command: Sequence[str]) -> Run:
    """Run ``command`` on the checkout to its end; raises RuntimeError with its messages where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": _compiled_modules()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    process = subprocess.Popen(
        list(command), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    messages = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:6])} ... ended with {process.returncode}: {messages.strip()[-2000:]}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def interleave(variants: Mapping[str, Variant], rounds: int) -> dict[str, list[Run]]:
    """Every variant once a round, each round beginning with the next variant, so that drift falls on all alike."""
    names = list(variants)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            variants[name].prepare()
            runs[name].append(execute(variants[name].command))
        print(f"round {i + 1} of {rounds}", file=sys.stderr, flush=True)
    return runs


def ratio(runs: Mapping[str, Sequence[Run]], name: str, base: str) -> float:
    """Median over the rounds of time / time of ``base`` in the same round."""
    return median(a.seconds / b.seconds for a, b in zip(runs[name], runs[base], strict=True))


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """One variant's medians and extremes, with every measured time."""
    seconds = [run.seconds for run in runs]
    return {
        "median_s": median(seconds),
        "min_s": min(seconds),
        "max_s": max(seconds),
        "cpu_s": median(run.cpu for run in runs),
        "peak_mib": median(run.peak_mib for run in runs),
        "seconds": seconds,
    }


def peak(mib: float) -> str:
    """A peak for the table; one that this process's own hides is only bounded."""
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{mib:.0f}" if mib > 1.05 * floor else f"<={mib:.0f}"


def forked(work: Callable[[], dict[str, Any]], *, seconds: int | None = None, mib: int | None = None) -> dict[str, Any]:
    """What ``work`` gives in a process of its own, or why it gave nothing.

    It may take ``seconds`` of the processor, twenty times as long by the clock, and ``mib`` more than this process has.
    """
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _limit(seconds, mib)
            found = work()
        except BaseException as fault:
            found = {"fails": f"{type(fault).__name__}: {fault}".split("\n")[0][:200]}
        with os.fdopen(ends[1], "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(ends[1])
    with os.fdopen(ends[0]) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    result: dict[str, Any] = json.loads(text) if text else {"fails": f"ended with {status}"}
    return result


def _limit(seconds: int | None, mib: int | None) -> None:
    if seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        signal.alarm(20 * seconds)
    if mib is not None:
        most = int((status_mib("VmSize") + mib) * (1 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def count_what_is_held() -> None:
    """Have the C library give back what is freed, which it otherwise keeps, more or less of it by chance."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: a mapping of its own for each tensor


def status_mib(key: str) -> float:
    """A line of the kernel's account of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def forget_peak() -> None:
    """Let ``VmHWM`` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def publish(name: str, headings: Sequence[str], rows: Sequence[Sequence[str]], data: Any, output: str | None) -> None:
    """Print the table and write ``data``, with what it was measured on, as JSON."""
    print(table(headings, rows), end="")
    print(f"written to {save(name, data, output)}", file=sys.stderr)


def save(name: str, data: Mapping[str, Any], output: str | None) -> Path:
    """Write ``data``, with what it was measured on, as JSON, and say where; what was there is replaced."""
    path = Path(output) if output else RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"bench": name, "machine": machine(), **data}, indent=2) + "\n")
    return path


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": _LOAD,
        "system": platform.system(),
        "python": platform.python_version(),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
