"""Archives of arrays that ask for more memory than they should: nothing is taken before it is known to be there."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.cli import run
from privctl.data import images as reader
from privctl.data import npz
from privctl.data.images import read_images
from privctl.domain.errors import InputError
from tests.few import few

MIB = 1 << 20
LABELS = np.array([0, 1])


def array(shape: str, data: bytes, dtype: str = "|u1", version: int = 1, length: int | None = None) -> bytes:
    """A .npy file whose header says what it is told to; ``length`` is what it gives as the header's own."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    prefix = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + prefix + text + data


def saved(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def archive(path: Path, images: bytes, labels: bytes | None = None, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("images.npy", images)
        file.writestr("labels.npy", saved(LABELS) if labels is None else labels)
    return path


def peak(call: Callable[[], object]) -> int:
    """Bytes of memory taken at most, numpy's included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(path: Path, fault: str, most: int = 8 * MIB) -> None:
    def read() -> None:
        with pytest.raises(InputError, match=fault) as caught:
            read_images(path)
        sentence = str(caught.value)
        assert str(path) in sentence
        assert "\n" not in sentence

    assert peak(read) < most


@pytest.mark.parametrize(
    "shape",
    ["(2, 100000, 100000, 3)", "(1000000000000,)", "(4611686018427387904, 4)", "(4294967296, 4294967296)", "(-1, 3)",
     "(" + "9, " * 60 + ")"],
)  # fmt: skip
def test_a_shape_that_the_file_does_not_hold(tmp_path: Path, shape: str) -> None:
    refused(archive(tmp_path / "a.npz", array(shape, bytes(24))), "its header says|not a sound")


def test_a_label_of_gigabytes(tmp_path: Path) -> None:
    labels = array("(2,)", bytes(8), dtype="<U100000000")
    refused(archive(tmp_path / "a.npz", saved(np.zeros((2, 3, 3), np.uint8)), labels), "its header says 800000000 ")


def test_what_unpacks_to_more_than_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.npz", saved(np.zeros((2, 4096, 4096), np.uint8)))
    assert path.stat().st_size < 40_000
    assert len(read_images(path, channels=1)) == 2
    monkeypatch.setattr(npz, "MOST_UNPACKED", 16 * MIB)
    refused(path, "unpacks to 0.0313 GiB, and 0.0156 GiB is the most for its size; write it with numpy.savez")
    archive(path, saved(np.zeros((2, 4096, 4096), np.uint8)), method=zipfile.ZIP_STORED)
    assert len(read_images(path, channels=1)) == 2, "what is not packed has no bound but its own size"


def test_a_member_that_says_that_it_is_small(tmp_path: Path) -> None:
    """The size in the archive's table is what is read, whatever the packed data come to."""
    path = archive(tmp_path / "a.npz", saved(np.zeros((2, 4096, 4096), np.uint8)))
    content = path.read_bytes()
    true = struct.pack("<I", 2 * 4096 * 4096 + 128)
    assert content.count(true) == 2
    path.write_bytes(content.replace(true, struct.pack("<I", 128 + 24)))
    refused(path, "Bad CRC-32|its header says")


def test_a_header_of_gigabytes(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", array("(2,)", bytes(64 * MIB), version=2, length=64 * MIB))
    refused(path, "a header of 67108864 bytes, and 10000 are read")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing(tmp_path: Path, method: int) -> None:
    path = archive(tmp_path / "a.npz", saved(np.zeros((2, 64, 64), np.uint8)), method=method)
    refused(path, r"images\.npy is packed in a way that numpy does not write")


def test_more_images_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.npz", saved(np.zeros((200, 1, 1), np.uint8)), saved(np.zeros(200, np.uint8)))
    assert len(read_images(path)) == 200
    monkeypatch.setattr(reader, "MOST_IMAGES", 199)
    refused(path, "has 200 images, and 199 are read at most")


def test_many_tiny_images_take_little_memory(tmp_path: Path) -> None:
    """Names and places are shared, or made when they are asked for."""
    count = 1 << 18
    path = archive(tmp_path / "a.npz", saved(np.zeros((count, 1, 1), np.uint8)), saved(np.arange(count) % 7))
    assert peak(lambda: read_images(path, channels=1)) < 25 * MIB


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (saved(np.zeros((2, 3, 3))), "is not an .npz file"),
        (array("(1000000000000,)", b""), "is not an .npz file"),
        (b"PK\x05\x06" + bytes(18), "lacks the array 'images'"),
    ],
)
def test_no_archive_of_arrays(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    refused(path, fault)


def test_encrypted_members_and_unknown_versions(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", array("(2,)", bytes(2), version=3))
    refused(path, "format version 3.0, and 1.0 and 2.0 are read")
    archive(path, saved(np.zeros((2, 3, 3), np.uint8)))
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02")
    content[place + 8] |= 1
    content[content.index(b"PK\x03\x04") + 6] |= 1
    path.write_bytes(bytes(content))
    refused(path, "is encrypted")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_honest_archives_are_read_as_numpy_reads_them(tmp_path: Path, save: Callable[..., None]) -> None:
    drawn = np.random.default_rng(0)
    images = np.asfortranarray(drawn.integers(0, 256, (5, 6, 7, 3)).astype(np.uint8))
    path = tmp_path / "a.npz"
    save(path, images=images, labels=np.array(["b", "a", "c", "a", " b "]), more=np.zeros(3))
    found = read_images(path)
    assert np.array_equal(found.pixels, images)
    assert found.labels == ("b", "a", "c", "a", "b")
    assert list(found.places) == [f"{path} image {i}" for i in range(5)]
    assert found.places[1:3] == [f"{path} image 1", f"{path} image 2"]
    assert found.places[-1] == f"{path} image 4"
    for name, stored in zip(("images", "labels"), npz.read_npz(path, ("images", "labels")), strict=True):
        with np.load(path) as other:
            assert np.array_equal(stored, other[name])
            assert stored.dtype == other[name].dtype


@pytest.mark.parametrize(
    "command",
    few([
        ["inspect", "{}"],
        ["noise", "{}", "--epochs", "1", "--learning-rate", "1", "--clip-norm", "1", "--dataset-size", "9",
         "--batch-size", "3"],
        ["verify", "{}"],
        ["report", "{}", "-o", "-"],
        ["gate", "{}", "--max-epsilon", "1"],
        ["audit", "--from-scores", "{}"],
        ["secrets", "scan", "{}", "-o", "{}.book.jsonl"],
    ], 0, 5),
)  # fmt: skip
def test_commands_that_read_no_arrays(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in (
        ("a.npz", archive(tmp_path / "a.npz", saved(np.zeros((2, 4096, 4096), np.uint8))).read_bytes()),
        ("a.npy", array("(1000000000000,)", b"")),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert run([part.format(path) for part in command]) in (2, 3)
        stderr = capsys.readouterr().err
        assert "Traceback" not in stderr
        assert "internal" not in stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "a.npz"]
