"""Digests: BLAKE3 as b3sum prints it, of files and of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privctl.domain.errors import InputError
from privctl.storage.digest import changed_tensors, file_digest, hash_tensors
from privctl.storage.reader import SafetensorsFile

#: The official test vectors: input byte i is i mod 251; here is its length and the first 32 bytes of output.
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1023: "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    2048: "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}


def pattern(size: int) -> bytes:
    return bytes(i % 251 for i in range(size))


@pytest.mark.parametrize(("size", "digest"), VECTORS.items())
def test_official_vectors(tmp_path: Path, size: int, digest: str) -> None:
    (tmp_path / "f").write_bytes(pattern(size))
    assert file_digest(tmp_path / "f") == f"blake3:{digest}"


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(3_000_001))
    advances: list[int] = []
    file_digest(tmp_path / "f", advances.append)
    assert sum(advances) == 3_000_001
    assert len(advances) > 1


def test_a_tensor_is_known_by_its_bytes_wherever_they_lie(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    known = np.frombuffer(pattern(102400), np.uint8)
    one = write_model(tmp_path / "1", {"w": known, "b": np.ones(3)})
    two = write_model(tmp_path / "2", {"b": np.ones(3), "w": known}, {"more": "metadata"})
    found = []
    for path in (one, two):
        with SafetensorsFile(path) as file:
            hashed = hash_tensors(file)
        assert hashed.file_digest == file_digest(path)
        found.append(hashed.tensors)
    assert found[0] == found[1]
    assert [t.name for t in found[0]] == ["b", "w"]
    assert found[0][1].digest == f"blake3:{VECTORS[102400]}"
    assert file_digest(one) != file_digest(two)


def test_tensors_larger_than_a_block_and_empty_ones(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    big = np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8)
    path = write_model(tmp_path / "m", {"big": big, "empty": np.zeros(0), "last": np.frombuffer(pattern(1), np.uint8)})
    with SafetensorsFile(path) as file:
        hashed = hash_tensors(file)
    by_name = {t.name: t for t in hashed.tensors}
    (tmp_path / "big").write_bytes(big.tobytes())
    assert by_name["big"].digest == file_digest(tmp_path / "big")
    assert by_name["empty"].digest == f"blake3:{VECTORS[0]}"
    assert by_name["last"].digest == f"blake3:{VECTORS[1]}"
    assert (by_name["big"].dtype, by_name["big"].shape) == ("U8", (3_000_001,))
    assert hashed.file_digest == file_digest(path)


def test_every_flipped_bit_shows(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    path = write_model(tmp_path / "m", {"a": np.arange(4, dtype=np.uint8), "b": np.arange(4, dtype=np.uint8)})
    with SafetensorsFile(path) as file:
        before, start = hash_tensors(file).tensors, file.header.data_start
    data = path.read_bytes()
    for byte in range(start, len(data)):
        for bit in range(8):
            path.write_bytes(data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :])
            with SafetensorsFile(path) as file:
                changed = changed_tensors(hash_tensors(file).tensors, before)
            assert changed == ["a" if byte - start < 4 else "b"]


def test_changes_of_any_kind_are_named(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    path = write_model(tmp_path / "m", {"a": np.ones(2), "b": np.ones(2), "c": np.ones(2)})
    with SafetensorsFile(path) as file:
        a, b, c = hash_tensors(file).tensors
    assert changed_tensors([a, b, c], [c, b, a]) == []
    assert changed_tensors([a, b], [a, b, c]) == ["c"]
    assert changed_tensors([a, b, c], [b]) == ["a", "c"]
    assert changed_tensors([a, replace(b, dtype="I64")], [a, b]) == ["b"]
    assert changed_tensors([a, replace(b, shape=(1, 2))], [a, b]) == ["b"]


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent is not a file"):
        file_digest(tmp_path / "absent")
    with pytest.raises(InputError, match="is not a file"):
        file_digest(tmp_path)
