"""Files that take more time or memory than they should, each made from a size; and commands in a cage."""

from __future__ import annotations

import gzip
import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privctl.domain.report import ParentReport
from tests.bytecode import search_path
from tests.gate.made import PROVED, making

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Caged:
    """How commands ended that could take no more memory and processor time than they were given."""

    code: int
    """That of the last."""
    codes: tuple[int, ...]
    out: str
    said: str
    peak: int
    """Bytes of memory in use at most."""

    @property
    def sentence(self) -> str:
        """Its last line on standard error."""
        return self.said.strip().rpartition("\n")[2]


_CAGE = """
import json, sys
from privctl.cli import run
from tests.memory import peak
codes = [run(call) for call in json.loads(sys.argv[2])]
json.dump([peak(), codes], open(sys.argv[1], "w"))
sys.exit(codes[-1])
"""


def caged(
    folder: Path,
    *arguments: str | Path,
    then: Sequence[Sequence[str | Path]] = (),
    memory: int = 3 << 30,
    seconds: int = 60,
) -> Caged:
    """Run ``privctl`` with ``arguments``: no more address space than ``memory`` bytes, no more processor time.

    The process runs the calls of ``then`` after it.
    """

    def cage() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    noted = folder / "peak"
    noted.unlink(missing_ok=True)
    calls = [[os.fspath(word) for word in call] for call in (arguments, *then)]
    done = subprocess.run(
        [sys.executable, "-c", _CAGE, os.fspath(noted), json.dumps(calls)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search_path(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        preexec_fn=cage,
        timeout=20 * seconds,
        check=False,
    )
    peak, codes = json.loads(noted.read_text()) if noted.is_file() else (-1, ())
    return Caged(done.returncode, tuple(codes), done.stdout, done.stderr, peak)


def huge_shapes(path: Path, size: int) -> Path:
    """A header of about ``size`` bytes: one tensor with as many dimensions of 2^62 as fit."""
    dimension = str(2**62)
    shape = ",".join([dimension] * (size // (len(dimension) + 1)))
    header = f'{{"a":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,8]}}}}'.encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    return path


def equal_tensors(path: Path, count: int, value: float = 1.0, prefix: str = "t") -> Path:
    """``count`` small tensors, all of the same constant."""
    data = np.full(16, value, np.float32).tobytes()
    header: dict[str, Any] = {
        f"{prefix}{i:06}": {"dtype": "F32", "shape": [16], "data_offsets": [i * len(data), (i + 1) * len(data)]}
        for i in range(count)
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data * count)
    return path


def facts(**more: int) -> list[str]:
    """The flags of ``privctl noise`` for a small training."""
    known = {"epochs": 2, "learning-rate": 0.1, "clip-norm": 1, "dataset-size": 100, "batch-size": 5, **more}
    return [part for name, value in known.items() for part in (f"--{name}", str(value))]


def edited(path: Path, where: list[str | int], value: Any) -> Path:
    """The report at ``path`` with another value at ``where``."""
    data = json.loads(path.read_text())
    inner = data
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    return path


def repeated_parent(folder: Path, times: int) -> Path:
    """A report that names one parent ``times`` times."""
    parent = making(folder / "parent.report.json", PROVED, name="parent")
    child = making(folder / "child.report.json", PROVED, step="noise", parents=[parent])
    data = json.loads(child.read_text())
    data["parents"] *= times
    child.write_text(json.dumps(data))
    return child


def doubling_chain(folder: Path, depth: int) -> Path:
    """Reports that each name the one before twice, with digests that are not its own: 2^``depth`` ways to the first."""
    last = making(folder / "r0.report.json", PROVED, name="m0")
    for i in range(1, depth):
        parents = tuple(ParentReport(path=last.name, digest=f"blake3:{wrong * 64}") for wrong in "ab")
        last = making(folder / f"r{i}.report.json", PROVED, name=f"m{i}", step="noise", parents=(), inputs=())
        data = json.loads(last.read_text())
        data["parents"] = [{"path": p.path, "digest": p.digest} for p in parents]
        last.write_text(json.dumps(data))
    return last


def one_line(path: Path, size: int) -> Path:
    """A gzip file of one line of ``size`` bytes, a JSON string that does not end."""
    return _packed(path, b'{"text": "', b"a" * (1 << 20), size)


def many_lines(path: Path, size: int) -> Path:
    """A gzip file of ``size`` bytes of one short record, over and over."""
    record = b'{"text": "the same again and again"}\n'
    return _packed(path, b"", record * ((1 << 20) // len(record)), size)


def _packed(path: Path, head: bytes, block: bytes, size: int) -> Path:
    """``head`` and as many times ``block`` as make ``size`` bytes; a gzip file may have any number of members."""
    member = gzip.compress(block)
    path.write_bytes((gzip.compress(head) if head else b"") + member * (size // len(block)))
    return path
