"""WAV files: every format of samples, data sets of them, what reports record of them, and every fault named."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from privctl.data.columns import Columns, HeadKind
from privctl.data.count import count_examples
from privctl.data.recorded import data_as_recorded, data_digest, recorded_files
from privctl.data.sounds import read_sounds
from privctl.data.wav import read_wav
from privctl.domain.errors import InputError
from privctl.reports.files import digested_artifact
from privctl.storage.digest import NamedFiles
from tests.zoo.shrink import write_wav

RATE = 16000


def tone(count: int = 50, shift: float = 0.0) -> np.ndarray:
    return 0.5 * np.sin(np.arange(count) / 3 + shift)


@pytest.mark.parametrize(
    ("scaled", "step"),
    [
        (lambda x: np.round(x * 127 + 128).astype(np.uint8), 2**-7),
        (lambda x: np.round(x * 32767).astype(np.int16), 2**-15),
        (lambda x: np.round(x * (2**31 - 1)).astype(np.int32), 2**-31),
        (lambda x: x.astype(np.float32), 2**-24),
        (lambda x: x.astype(np.float64), 2**-24),
    ],
)
def test_samples_as_scipy_writes_them(tmp_path: Path, scaled: object, step: float) -> None:
    both = np.stack([tone(), tone(shift=1.0)], 1)
    wavfile.write(tmp_path / "a.wav", RATE, scaled(both))  # type: ignore[operator]
    samples, rate = read_wav(tmp_path / "a.wav", "a.wav")
    assert rate == RATE
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, both.mean(1), atol=2 * step)


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def riff(kind: int, bits: int, content: bytes, channels: int = 1) -> bytes:
    stated = struct.pack("<HHIIHH", kind, channels, RATE, RATE * channels * bits // 8, channels * bits // 8, bits)
    inside = b"WAVE" + chunk(b"LIST", b"odd") + chunk(b"fmt ", stated) + chunk(b"data", content)
    return b"RIFF" + struct.pack("<I", len(inside)) + inside


def test_24_bits(tmp_path: Path) -> None:
    values = [0, 1, -1, 2**23 - 1, -(2**23)]
    content = b"".join(value.to_bytes(3, "little", signed=True) for value in values)
    (tmp_path / "a.wav").write_bytes(riff(1, 24, content))
    samples, _ = read_wav(tmp_path / "a.wav", "a.wav")
    np.testing.assert_allclose(samples, np.array(values) / 2**23, atol=1e-7)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"not a sound", "is not a WAV file"),
        (riff(1, 16, b"abcd")[:-2], "is cut off"),
        (riff(1, 16, b""), "holds no sample"),
        (riff(1, 16, b"abc"), "ends within a sample"),
        (riff(85, 16, b"abcd"), "is compressed, or of 16 bits in an unknown format"),
        (riff(1, 16, b"abcd", channels=0), "is compressed"),
        (riff(3, 32, struct.pack("<f", np.nan)), "holds NaN or infinity"),
        (b"RIFF\0\0\0\0WAVE" + chunk(b"data", b"abcd"), "lacks its format or its samples"),
    ],
)
def test_faults_of_files(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(InputError, match=fault):
        read_wav(tmp_path / "a.wav", "a.wav")


def write(folder: Path) -> Path:
    for i in range(4):
        (folder / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        write_wav(folder / "ab"[i % 2] / f"{i}.wav", tone(50 + i))
    return folder


def test_class_folders_and_lists_hold_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    found = read_sounds(folder, rate=RATE)
    assert found.labels == ("a", "a", "b", "b")
    assert [len(wave) for wave in found.waves] == [50, 52, 51, 53]
    listed = tmp_path / "list.jsonl"
    rows = [{"audio": f"d/{'ab'[i % 2]}/{i}.wav", "label": "ab"[i % 2]} for i in (0, 2, 1, 3)]
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    same = read_sounds(listed, rate=RATE)
    assert same.labels == found.labels
    assert all(np.array_equal(one, other) for one, other in zip(same.waves, found.waves, strict=True))
    assert count_examples(folder) == count_examples(listed) == 4
    before = data_digest(folder), data_digest(listed)
    assert len(recorded_files(listed)) == 2
    write_wav(folder / "a" / "0.wav", tone(50, 0.1))
    assert all(one != other for one, other in zip(before, (data_digest(folder), data_digest(listed)), strict=True))


def test_several_labels(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    columns = Columns(problem=HeadKind.SEVERAL, label="tags")
    (tmp_path / "l.jsonl").write_text('{"path": "d/a/0.wav", "tags": ["y", "x"]}\n{"path": "d/b/1.wav", "tags": []}\n')
    assert read_sounds(tmp_path / "l.jsonl", rate=RATE, columns=columns).labels == ('["x", "y"]', "[]")
    with pytest.raises(InputError, match="gives each sound the one label of its folder"):
        read_sounds(folder, rate=RATE, columns=columns)


def test_faults_of_data_sets(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    with pytest.raises(InputError, match="has 16000 samples a second, and the model takes 8000"):
        read_sounds(folder, rate=8000)
    (tmp_path / "l.jsonl").write_text('{"text": "a", "label": "x"}\n')
    with pytest.raises(InputError, match="names no WAV files: its fields are text, label"):
        read_sounds(tmp_path / "l.jsonl", rate=RATE)
    (tmp_path / "l.jsonl").write_text('{"audio": "gone.wav", "label": "x"}\n')
    with pytest.raises(InputError, match="gone.wav"):
        read_sounds(tmp_path / "l.jsonl", rate=RATE)
    (folder / "c").mkdir()
    with pytest.raises(InputError, match="holds no WAV file"):
        read_sounds(folder, rate=RATE)


def test_sounds_and_classes_are_found_again_as_a_report_names_them(tmp_path: Path) -> None:
    folder, listed = write(tmp_path / "d"), tmp_path / "list.jsonl"
    listed.write_text('{"audio": "d/a/0.wav", "label": "x"}\n{"audio": "d/b/1.wav", "label": "y"}\n')
    for data in (folder, listed):
        report = tmp_path / "r.json"
        named = [(each.path, digested_artifact("data", each, report)) for each in recorded_files(data)]
        assert data_as_recorded(named, NamedFiles()) == data
        write_wav(folder / "a" / "0.wav", tone(50, 0.1))
        assert data_as_recorded(named, NamedFiles()) is None
        write(tmp_path / "d")
        assert data_as_recorded(named, NamedFiles()) == data
    (folder / "a" / "0.wav").unlink()
    os.mkfifo(folder / "a" / "0.wav")
    with pytest.raises(InputError, match="is a device or a pipe"):  # which would never answer
        data_as_recorded(named, NamedFiles())
