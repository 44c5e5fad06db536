"""What ``privctl noise`` does to each byte of a checkpoint, piece by piece on one core, and the time it cannot beat."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from blake3 import blake3

from privctl.noise.weight_noise import WeightNoiser
from privctl.randomness import BLOCK, NoiseSource
from privctl.randomness.deviates import float32_deviates
from privctl.randomness.gridded import TILE, BlockBuffers
from privctl.randomness.keystream import BlockKeystream
from privctl.storage.atomic import PendingFile
from privctl.storage.digest import TensorHasher
from privctl.storage.reader import SafetensorsFile
from privctl.storage.stream import CHUNK, Piece, pieces
from tests.bench.common import execute, publish
from tests.bench.noise import PRIVCTL, _model

#: Parts of "noise", shown beside it and not counted again.
_WITHIN = ("keystream", "deviates", "noise by machine code")
_BASES = ("copy", "sync")


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--gigabytes", type=float, default=0.25, help="size of the float32 file (10^9 bytes)")
    parser.add_argument("--rounds", type=int, default=5)


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    with tempfile.TemporaryDirectory(prefix="bench-noise-pieces-") as folder:
        data = measured(Path(folder), options.gigabytes, options.rounds)
    rows = [
        [name, f"{found['seconds']:.3f}", f"{found['cpu_s']:.3f}", f"{1 / found['seconds']:.1f}"]
        for name, found in data["a_gigabyte"].items()
    ]
    rows.append(["start, in all", f"{data['start']['seconds']:.3f}", f"{data['start']['cpu_s']:.3f}", "-"])
    rows.append(["floor on two cores", f"{data['floor_s']:.3f}", "-", f"{data['floor_to_copy']:.2f} x copy"])
    publish("noise-pieces", ["piece", "s / GB", "CPU s / GB", "GB / s"], rows, data, options.output)


def measured(folder: Path, gigabytes: float, rounds: int) -> dict[str, Any]:
    """Seconds a gigabyte of every piece, medians of ``rounds`` that take turns; the start's; and what follows."""
    model = _model(folder, gigabytes)
    seconds: dict[str, list[tuple[float, float]]] = {}
    starts = []
    for _ in range(rounds):
        for name, taken in _round(model, folder):
            seconds.setdefault(name, []).append(taken)
        starts.append(_start(folder))
    a_gigabyte = {name: _median(taken) for name, taken in seconds.items()}
    once = sum(found["cpu_s"] for name, found in a_gigabyte.items() if name not in (*_WITHIN, *_BASES))
    floor = once / 2 + _median(starts)["cpu_s"]  # processor seconds, which other processes change least
    return {
        "gigabytes": gigabytes,
        "rounds": rounds,
        "a_gigabyte": a_gigabyte,
        "start": _median(starts),
        "floor_s": floor,
        "floor_to_copy": floor / a_gigabyte["copy"]["cpu_s"],
    }


def _round(model: Path, folder: Path) -> Iterator[tuple[str, tuple[float, float]]]:
    """Every piece once over the whole file: its name, and the wall-clock and processor seconds a gigabyte."""
    with ExitStack() as stack:
        file = stack.enter_context(SafetensorsFile(model))
        size = file.size - file.header.data_start
        pending = stack.enter_context(PendingFile(folder / "written", size))
        copied = os.open(folder / "copied", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        stack.callback(os.close, copied)
        source = os.open(model, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, source)
        buffer = memoryview(bytearray(CHUNK))
        digest, hasher = blake3(), TensorHasher(b"")
        keystream, deviates = _drawn()
        streams = {t.name: i for i, t in enumerate(file.tensors)}
        compiled = NoiseSource(0)
        compiled.compile(["F32"])  # where llvmlite is not installed, both rows are the same
        noiser, quick = (WeightNoiser(source, [0.01], streams) for source in (NoiseSource(0), compiled))

        def place(piece: Piece) -> int:
            return piece.tensor.begin + piece.start

        def read(piece: Piece) -> None:
            file.read_into(file.header.data_start + place(piece), buffer[: piece.size])

        def hash_output(piece: Piece) -> None:
            hasher.update(buffer[: piece.size])

        for name, work in {
            "copy": lambda piece: os.copy_file_range(source, copied, piece.size, place(piece), place(piece)),
            "read": read,
            "digest of the input": lambda piece: digest.update(buffer[: piece.size]),
            "keystream": keystream,
            "deviates": deviates,
            "noise": lambda piece: noiser(piece, [buffer[: piece.size]]),
            "noise by machine code": lambda piece: quick(piece, [buffer[: piece.size]]),
            "digests of the output": hash_output,
            "write": lambda piece: pending.write_at(place(piece), buffer[: piece.size]),
        }.items():
            yield name, _taken(work, pieces(file.tensors), size)
        yield "sync", _taken(lambda _: pending.flush(), [None], size)
    (folder / "copied").unlink()


def _drawn() -> tuple[Callable[[Piece], object], Callable[[Piece], object]]:
    """The words of a full block of noise, and the deviates made of them, tile by tile."""
    source, scratch = NoiseSource(0), BlockBuffers(BLOCK)
    pairs, tile = BLOCK // 2, TILE // 2
    words = BlockKeystream(source.keystream, 0, 0).leading(BLOCK, scratch.zeros, scratch.stream(1)).copy()

    def keystream(piece: Piece) -> None:
        BlockKeystream(source.keystream, 0, piece.index).leading(piece.size // 4, scratch.zeros, scratch.stream(0))

    def deviates(piece: Piece) -> None:
        for start in range(0, piece.size // 8, tile):
            first, second = words[start : start + tile], words[pairs + start : pairs + start + tile]
            float32_deviates(first, second, 0.01, scratch.pairs, scratch.deviates)

    return keystream, deviates


def _taken(work: Callable[[Any], object], over: Any, size: int) -> tuple[float, float]:
    started, cpu = time.perf_counter(), time.thread_time()
    for piece in over:
        work(piece)
    return 1e9 * (time.perf_counter() - started) / size, 1e9 * (time.thread_time() - cpu) / size


def _start(folder: Path) -> tuple[float, float]:
    """Of ``privctl noise`` on a megabyte: what does not grow with the file."""
    model, output = _model(folder, 0.001), folder / "noised.safetensors"
    run = execute(
        [sys.executable, "-m", "privctl", "noise", str(model), *PRIVCTL.split(), "--force", "-o", str(output)]
    )
    return run.seconds, run.cpu


def _median(taken: list[tuple[float, float]]) -> dict[str, float]:
    return {"seconds": median(wall for wall, _ in taken), "cpu_s": median(cpu for _, cpu in taken)}
