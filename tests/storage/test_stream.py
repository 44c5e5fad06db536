"""Rewriting in a stream: right bytes and digests at any number of threads, errors raised, never a deadlock."""

from __future__ import annotations

import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from privctl.domain.errors import FileSystemError, InputError
from privctl.storage.atomic import PendingFile
from privctl.storage.digest import file_digest, hash_tensors
from privctl.storage.header import serialize_header
from privctl.storage.reader import SafetensorsFile
from privctl.storage.stream import CHUNK, Piece, Rewritten, Transform, pieces, rewrite
from tests.few import few

TIMEOUT = 30.0


def tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    sizes = {
        "below": CHUNK - 3,
        "exactly": CHUNK,
        "above": CHUNK + 1,
        "many": 5 * CHUNK + 17,
        "one": 1,
        "empty": 0,
        "zz": 4096,
    }
    arrays = {name: generator.integers(0, 256, size, np.uint8) for name, size in sizes.items()}
    arrays["scalar"] = np.array(2.5, np.float32)
    arrays["flat"] = np.zeros((3, 0, 2), np.float32)
    return arrays


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path_factory.mktemp("stream") / "in.safetensors", tensors(), {"format": "pt"})


def identity(_: Piece, buffers: Sequence[memoryview]) -> None:
    for buffer in buffers[1:]:
        buffer[:] = buffers[0]


def in_time(call: Callable[[], Any]) -> Any:
    """The call's result or error; fails instead of hanging."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive(), "deadlock"
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def stream(model: Path, outputs: Sequence[Path], transform: Transform, threads: int = 2, **more: Any) -> Rewritten:
    """Rewrite and commit ``model`` into ``outputs``, each with metadata of its own."""

    def run() -> Rewritten:
        with SafetensorsFile(model) as source:
            headers = [serialize_header(source.tensors, {"output": "x" * i}) for i in range(len(outputs))]
            size = source.size - source.header.data_start
            pending = [PendingFile(p, len(h) + size) for p, h in zip(outputs, headers, strict=True)]
            try:
                result = rewrite(source, pending, headers, transform, threads=threads, **more)
                for p in pending:
                    p.commit()
            finally:
                for p in pending:
                    p.__exit__(None, None, None)
            return result

    result = in_time(run)
    assert isinstance(result, Rewritten)
    return result


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("threads", few([1, 2, 3, 8], 0, 2))
def test_identity_copies_every_tensor(model: Path, tmp_path: Path, threads: int, outputs: int) -> None:
    paths = [tmp_path / f"{i}.safetensors" for i in range(outputs)]
    result = stream(model, paths, identity, threads)
    assert result.input_digest == f"blake3:{blake3(model.read_bytes()).hexdigest()}"
    with SafetensorsFile(model) as source:
        before = {t.name: bytes(source.read(t)) for t in source.tensors}
        digests = hash_tensors(source).tensors
    for path, written in zip(paths, result.outputs, strict=True):
        with SafetensorsFile(path) as after:
            assert {t.name: bytes(after.read(t)) for t in after.tensors} == before
        assert written.path == path
        assert written.size == path.stat().st_size
        assert written.digest == file_digest(path)
        assert written.tensors == digests


@pytest.mark.parametrize("threads", few([2, 6], 1))
def test_order_of_completion_does_not_matter(model: Path, tmp_path: Path, threads: int) -> None:
    """Workers that dawdle at random must leave the same bytes and digests."""
    moments = random.Random(1)

    def slow(piece: Piece, buffers: Sequence[memoryview]) -> None:
        time.sleep(moments.uniform(0, 0.01))
        buffers[1][:] = memoryview(255 - np.frombuffer(buffers[0], np.uint8))

    order: list[int] = []
    paths = [tmp_path / "same", tmp_path / "flipped"]
    result = stream(model, paths, slow, threads, advance=order.append)
    for path, written in zip(paths, result.outputs, strict=True):
        assert written.digest == file_digest(path)
        with SafetensorsFile(path) as after:
            assert written.tensors == hash_tensors(after).tensors
    expected = tensors()
    with SafetensorsFile(paths[1]) as after:
        for t in after.tensors:
            assert bytes(after.read(t)) == bytes(255 - b for b in expected[t.name].tobytes())
    assert sum(order) == sum(a.nbytes for a in expected.values())


def test_pieces_cover_every_byte_once(model: Path) -> None:
    with SafetensorsFile(model) as source:
        found = list(pieces(source.tensors))
        assert [p.index for p in found] == list(range(len(found)))
        for tensor in source.tensors:
            mine = [p for p in found if p.tensor is tensor]
            assert [p.start for p in mine] == list(range(0, max(tensor.size, 1), CHUNK))
            assert sum(p.size for p in mine) == tensor.size
            assert [p.last for p in mine] == [False] * (len(mine) - 1) + [True]


@pytest.mark.parametrize("made", [{}, {"empty": np.zeros((0, 4), np.float32)}, {"scalar": np.array(1, np.int64)}])
def test_files_with_hardly_anything_in_them(
    made: dict[str, np.ndarray], tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    source = write_model(tmp_path / "in", made)
    result = stream(source, [tmp_path / "out"], identity, 3)
    assert result.outputs[0].digest == file_digest(tmp_path / "out")
    assert [t.name for t in result.outputs[0].tensors] == list(made)


class Planted(Exception):
    """The error a test plants."""


@pytest.mark.parametrize("at", [0, 3, 9, 13])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_an_error_in_the_transform_is_raised(model: Path, tmp_path: Path, threads: int, at: int) -> None:
    def failing(piece: Piece, buffers: Sequence[memoryview]) -> None:
        identity(piece, buffers)
        if piece.index == at:
            raise Planted(at)

    with pytest.raises(Planted):
        stream(model, [tmp_path / "out"], failing, threads)
    assert not list(tmp_path.iterdir()), "nothing is left of an output that failed"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_errors_of_all_threads_at_once_do_not_deadlock(model: Path, tmp_path: Path, threads: int) -> None:
    def failing(piece: Piece, _: Sequence[memoryview]) -> None:
        time.sleep(random.Random(piece.index).uniform(0, 0.005))
        raise Planted(piece.index)

    for _ in range(10):
        with pytest.raises(Planted):
            stream(model, [tmp_path / "out"], failing, threads)


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_while_others_wait_for_their_turn(model: Path, tmp_path: Path, threads: int) -> None:
    """Piece 0 fails last, when every other worker already waits for it to be written."""

    def failing(piece: Piece, buffers: Sequence[memoryview]) -> None:
        if piece.index == 0:
            time.sleep(0.2)
            raise Planted
        identity(piece, buffers)

    with pytest.raises(Planted):
        stream(model, [tmp_path / "out"], failing, threads)


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_in_reading_while_others_wait_to_hash(
    model: Path, tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece cannot be read, when every other worker already waits for it to be hashed."""
    read_into = SafetensorsFile.read_into

    def failing(file: SafetensorsFile, position: int, buffer: memoryview) -> None:
        if position == file.header.data_start:
            time.sleep(0.2)
            raise Planted
        read_into(file, position, buffer)

    monkeypatch.setattr(SafetensorsFile, "read_into", failing)
    with pytest.raises(Planted):
        stream(model, [tmp_path / "out"], identity, threads)


def test_an_interruption_is_raised_too(model: Path, tmp_path: Path) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream(model, [tmp_path / "out"], identity, 3, advance=interrupted)


def test_a_source_that_shrinks_is_one_sentence(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "in.safetensors"
    copy.write_bytes(model.read_bytes())

    def shrinking(piece: Piece, buffers: Sequence[memoryview]) -> None:
        identity(piece, buffers)
        with copy.open("r+b") as file:
            file.truncate(1000)

    with pytest.raises(InputError, match=r"in\.safetensors became shorter"):
        stream(copy, [tmp_path / "out"], shrinking, 2)


def test_an_output_that_cannot_be_written_is_one_sentence(model: Path, tmp_path: Path) -> None:
    with SafetensorsFile(model) as source:
        header = serialize_header(source.tensors, {})
        with PendingFile(tmp_path / "out") as pending:
            pass
        with pytest.raises(FileSystemError, match="out cannot be written"):
            in_time(lambda: rewrite(source, [pending], [header], identity))


def test_memory_does_not_grow_with_the_file(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    source = write_model(tmp_path / "in", {"w": np.ones(6 << 20, np.float32)})
    tracemalloc.start()
    try:
        stream(source, [tmp_path / "a", tmp_path / "b"], identity, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * CHUNK, "24 MiB pass through a buffer a worker and output"
