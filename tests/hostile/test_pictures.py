"""Images and sounds that become gigabytes: what is decoded is held against the files that it came from."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from privctl.data import decoded
from privctl.data.decoding import open_image
from privctl.data.images import read_images
from privctl.data.sounds import read_sounds
from privctl.domain.errors import InputError

SIDE = 256
FAULT = "unpacks to more than .* GiB, over 100 times its size"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pictures show what a thousand large ones do."""
    monkeypatch.setattr(decoded, "MOST_UNPACKED", 1 << 20)


def picture(colours: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None = None) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8) if colours is None else colours).save(stream, "PNG")
    return stream.getvalue()


def folder(folder: Path, content: bytes, count: int) -> Path:
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{i}.png").write_bytes(content)
    return folder


def table(path: Path, content: bytes, count: int) -> Path:
    rows = pa.table({"image": [content] * count, "label": ["a", "b"] * (count // 2)})
    pq.write_table(rows, path, use_dictionary=True)
    return path


def test_pictures_of_one_colour(tmp_path: Path) -> None:
    content = picture()
    assert 150 * len(content) < SIDE * SIDE * 3
    path = folder(tmp_path / "f", content, 5)
    with pytest.raises(InputError, match=FAULT):
        read_images(path)
    assert len(read_images(path, resize=(32, 32))) == 10  # what is kept of them is small
    path = table(tmp_path / "t.parquet", content, 10)
    with pytest.raises(InputError, match=FAULT):
        read_images(path)


def test_one_picture_in_many_rows(tmp_path: Path) -> None:
    """Its own file shrinks little, but a table stores it once."""
    noisy = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    path = table(tmp_path / "t.parquet", picture(noisy), 200)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InputError, match=FAULT):
        read_images(path)
    assert len(read_images(table(tmp_path / "u.parquet", picture(noisy), 20))) == 20


def test_small_pictures_may_be_enlarged(tmp_path: Path) -> None:
    digits = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    assert read_images(folder(tmp_path / "f", picture(digits), 8), resize=(SIDE, SIDE)).pixels.nbytes > 2 << 20


def test_one_sound_that_many_records_name(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.arange(8000, dtype="<i2").tobytes())
    path = tmp_path / "r.jsonl"

    def named(count: int) -> Path:
        path.write_text((json.dumps({"audio": "a.wav", "label": "a"}) + "\n") * count)
        return path

    assert len(read_sounds(named(40), rate=8000)) == 40
    with pytest.raises(InputError, match=FAULT):
        read_sounds(named(60), rate=8000)


def test_a_jpeg_of_many_scans(tmp_path: Path) -> None:
    """Each of a hundred bytes goes through all pixels: a megabyte takes minutes."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((SIDE, SIDE), np.uint8)).save(stream, "JPEG", progressive=True)
    content = stream.getvalue()
    first, last = content.count(b"\xff\xda"), content[content.rindex(b"\xff\xda") : -2]
    for count, fine in ((100, True), (101, False)):
        picture = content[:-2] + last * (count - first) + content[-2:]
        if fine:
            with open_image(io.BytesIO(picture), "p") as image:
                assert image.size == (SIDE, SIDE)
            continue
        (tmp_path / "p.jpg").write_bytes(picture)
        for file in (io.BytesIO(picture), tmp_path / "p.jpg"):
            with pytest.raises(InputError, match="p has 101 scans, and 100 of a JPEG image are read"):
                open_image(file, "p")
