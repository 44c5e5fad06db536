"""Reading texts, labels and images: what is good, and what is hostile."""

from __future__ import annotations

import gzip
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from privctl.data.images import read_images
from privctl.data.labels import LabelSet, labels_named, labels_of, numbers_of
from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord, read_texts
from privctl.domain.errors import CommandError, FileSystemError, InputError, PrivctlError


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def picture(path: Path, size: tuple[int, int] = (4, 3), mode: str = "RGB", colour: Any = (10, 20, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)
    return path


def message(caught: pytest.ExceptionInfo[PrivctlError]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_jsonl_with_labels_units_and_both_forms(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "a.jsonl",
        {"text": "one", "label": "good", "who": 7},
        {"prompt": "two", "response": "three", "label": 3, "who": " Ann "},
    )
    first, second = read_texts(path, labelled=True, unit="who")
    assert first == TextRecord(stretch=Stretch(f"{path} line"), text="one", start=0, label="good", unit="7")
    assert (second.text, second.text[second.start :], second.label, second.unit) == ("two\nthree", "three", "3", "Ann")
    assert [(r.label, r.unit) for r in read_texts(path)] == [(None, None), (None, None)]


def test_tables_are_read_as_jsonl_is(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\ufeffid,label, text\n1,pos,"a, b\n""c"""\n\n2,neg,plain\n', encoding="utf-8")
    records = read_texts(path, labelled=True, unit="id")
    assert [(r.where, r.text, r.label, r.unit) for r in records] == [
        (f"{path} line 2", 'a, b\n"c"', "pos", "1"),
        (f"{path} line 5", "plain", "neg", "2"),
    ]
    tab = tmp_path / "a.tsv.gz"
    tab.write_bytes(gzip.compress(b'prompt\tresponse\r\nsay "hi\t"hi, you\r\n'))
    (record,) = read_texts(tab)
    assert record.text == 'say "hi\n"hi, you'
    long = tmp_path / "long.csv"
    long.write_text("text\n" + "x" * 200_000 + "\n")
    assert len(read_texts(long)[0].text) == 200_000


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"text": "a"}, "line 2 lacks 'label'; name the field of the label with --label-column"),
        ({"text": "a", "label": None}, "line 2 has null as 'label'"),
        ({"text": "a", "label": True}, "line 2 has true or false as 'label'"),
        ({"text": "a", "label": 0.5}, "line 2 has a number with a fraction as 'label'"),
        ({"text": "a", "label": " "}, "line 2 has an empty 'label'"),
        ({"text": "a", "label": "a\u001b[31m"}, "line 2 has unprintable characters in 'label'"),
        ({"text": "a", "label": "\udc80"}, "line 2 has unprintable characters in 'label'"),
        ({"text": "a", "label": ["x"]}, "line 2 has a list as 'label'"),
        ({"text": "a", "label": "x"}, "line 2 lacks 'who'"),
        ({"label": "x", "who": 1}, "line 2 lacks 'text'"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, row: dict[str, Any], fault: str) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"text": "fine", "label": "x", "who": 1}, row)
    with pytest.raises(InputError, match=fault) as caught:
        read_texts(path, labelled=True, unit="who")
    assert message(caught).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.csv", b"", "holds no records"),
        ("a.csv", b"text,label\n", "holds no records"),
        ("a.csv", b"sentence,label\na,b\n", "line 1 names no column 'text'"),
        ("a.csv", b"text,text\na,b\n", "line 1 names a column twice"),
        ("a.csv", b"text,label\na,b\nc\n", "line 3 has 1 cells where the first row names 2"),
        ("a.csv", b'text,label\n"a,b\n', "line 2 is not a row of a table"),
        ("a.csv", b'text,label\n"a"b,c\n', "line 2 is not a row of a table"),
        ("a.csv", b"text,label\n\xff,b\n", "line 2 is not UTF-8"),
        ("a.csv", b"text,label\n,b\n", "line 2 has an empty 'text'"),
        ("a.csv", b"text,label\na,\n", "line 2 has an empty 'label'"),
        ("a.csv", b"text\na\n", "line 2 lacks 'label'"),
        ("a.tsv", b"text\tlabel\na\tb\tc\n", "line 2 has 3 cells .*no tab"),
        ("a.csv.gz", b"text,label\na,b\n", "not a complete gzip file"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, name: str, content: bytes, fault: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=fault) as caught:
        read_texts(tmp_path / name, labelled=True)
    assert message(caught).startswith(str(tmp_path / name))


def test_places_that_are_no_texts(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"ends neither in \.jsonl nor"):
        read_texts(tmp_path / "a.docx")
    with pytest.raises(InputError, match="is not a file"):
        read_texts(tmp_path / "a.csv")


def test_labels_get_numbers() -> None:
    assert labels_of(["b", "a", "b"], "x").names == ("a", "b")
    assert labels_of(["10", *map(str, range(10))], "x").names == tuple(map(str, range(11)))
    assert labels_of(["-1", "1"], "x").names == ("-1", "1")
    assert labels_of(["01", "1"], "x").names == ("01", "1")
    assert numbers_of(["b", "a"], ["line 1", "line 2"], LabelSet(("b", "a"))) == [0, 1]


def test_numbers_where_labels_have_names() -> None:
    with pytest.raises(InputError, match="'1', which is not one of 'neg', 'pos'; if the numbers .* give --labels 0,1$"):
        LabelSet(("neg", "pos")).number("1", "row 1")
    with pytest.raises(InputError, match="'2', which is not one of 'neg', 'pos'; name it in --labels"):
        LabelSet(("neg", "pos")).number("2", "row 1")


def test_a_label_in_other_case() -> None:
    with pytest.raises(InputError, match="'POS', which is not one of 'neg', 'Pos'; did you mean 'Pos'\\?$"):
        LabelSet(("neg", "Pos")).number("POS", "row 1")


def test_a_file_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(b"\xef\xbb\xbfneg\r\npos\r\n")  # as Windows writes it
    assert labels_named(str(path)) == ("neg", "pos")
    path.write_text("\n\n")
    with pytest.raises(CommandError, match=r"labels\.txt holds no name"):
        labels_named(str(path))


def test_errors_do_not_quote_texts_in_the_place_of_labels() -> None:
    text = "a patient's words, " * 9
    for raised in (lambda: LabelSet(("neg", "pos")).number(text, "row 1"), lambda: labels_of([text], "a.jsonl")):
        with pytest.raises(InputError, match="label of 171 characters") as error:
            raised()
        assert "patient" not in str(error.value)


def test_a_label_of_thousands_of_digits_is_a_name() -> None:
    assert labels_of(["9" * 5000, "1"], "x").names == ("1", "9" * 5000)
    with pytest.raises(InputError, match="label of 5000 characters, which is not one of '0', '1'"):
        LabelSet(("0", "1")).number("9" * 5000, "row 1")


def test_labels_that_do_not_work() -> None:
    with pytest.raises(InputError, match="a.jsonl has labels up to 3 but not 1; number them from 0"):
        labels_of(["0", "2", "3"], "a.jsonl")
    with pytest.raises(InputError, match="up to 999999999999 but not 1"):
        labels_of(["0", "999999999999"], "a.jsonl")
    with pytest.raises(InputError, match="only the label 'x'"):
        labels_of(["x", "x"], "a.jsonl")
    with pytest.raises(InputError, match="line 2 has the label 'c', which is not one of 'a', 'b'"):
        numbers_of(["a", "c"], ["line 1", "line 2"], LabelSet(("a", "b")))
    for names in ((), ("a",), ("a", "a")):
        with pytest.raises(CommandError):
            LabelSet(names)


def test_a_folder_of_classes(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "b.png")
    picture(tmp_path / "cat" / "a.ppm", colour=(1, 2, 3))
    picture(tmp_path / "dog" / "a.jpeg")
    picture(tmp_path / "dog" / "c.png", mode="L", colour=200)
    (tmp_path / "dog" / "notes.csv").write_text("x")
    (tmp_path / ".hidden").mkdir()
    images = read_images(tmp_path)
    assert images.pixels.shape == (4, 3, 4, 3)
    assert images.pixels.dtype == np.uint8
    assert (images.size, images.channels, images.ignored) == ((3, 4), 3, 1)
    assert images.labels == ("cat", "cat", "dog", "dog")
    assert images.pixels[0, 0, 0].tolist() == [1, 2, 3]
    assert images.pixels[3, 0, 0].tolist() == [200, 200, 200]
    assert read_images(tmp_path, channels=1).pixels.shape == (4, 3, 4, 1)
    assert read_images(tmp_path, resize=(5, 6)).size == (5, 6)


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a").mkdir()
    Image.new("RGB", (4, 3)).save(tmp_path / "a" / "a.jpg", exif=exif)
    assert read_images(tmp_path).size == (4, 3)


def huge_png() -> bytes:
    """A header that announces 10^9 pixels, and next to nothing behind it."""
    found = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(b"")):
        found += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return found


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is not a JPEG, PNG or PPM image"),
        (b"GIF89a" + bytes(40), "is not a JPEG, PNG or PPM image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 3\n", "is not a JPEG, PNG or PPM image"),
        (b"P6\n4 3\n255\n" + bytes(5), "cannot be decoded"),
        (b"P6\n4 -3\n255\n" + bytes(36), "cannot be decoded|is not a JPEG"),
        (huge_png(), "exceeds the limit of"),
    ],
)
def test_files_that_are_no_images(tmp_path: Path, content: bytes, fault: str) -> None:
    picture(tmp_path / "a" / "a.png")
    bad = tmp_path / "b" / "bad.png"
    bad.parent.mkdir()
    bad.write_bytes(content)
    with pytest.raises(InputError, match=fault) as caught:
        read_images(tmp_path)
    assert message(caught).startswith(str(bad))


def test_folders_that_do_not_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no images"):
        read_images(tmp_path)
    picture(tmp_path / "a" / "a.png")
    picture(tmp_path / "a" / "b.png", size=(5, 5))
    with pytest.raises(InputError, match=r"b\.png is 5x5 pixels but a\.png is 3x4; give --resize HEIGHT WIDTH"):
        read_images(tmp_path)
    picture(tmp_path / "a" / "b.png", mode="I;16", colour=1)
    with pytest.raises(InputError, match=r"b\.png has more than 8 bits per channel"):
        read_images(tmp_path)
    (tmp_path / "a" / "b.png").unlink()
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="b holds no JPEG, PNG or PPM file"):
        read_images(tmp_path)
    (tmp_path / "b").rmdir()
    picture(tmp_path / "stray.png")
    with pytest.raises(InputError, match=r"stray\.png is outside the class folders"):
        read_images(tmp_path)
    with pytest.raises(CommandError, match="is neither a folder of class folders nor an .npz, parquet or Arrow file"):
        read_images(tmp_path / "none")
    with pytest.raises(CommandError, match="takes images of 4 channels"):
        read_images(tmp_path, channels=4)


def test_arrays_of_bytes_and_of_floats(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    grey = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    np.savez(path, images=grey, labels=np.array(["x", "y"]))
    images = read_images(path)
    assert (images.pixels.shape, images.labels) == ((2, 3, 4, 3), ("x", "y"))
    assert np.array_equal(images.pixels[..., 1], grey)
    assert np.array_equal(read_images(path, channels=1).pixels[..., 0], grey)
    assert read_images(path, channels=1, resize=(6, 8)).pixels.shape == (2, 6, 8, 1)
    np.savez_compressed(path, images=np.ones((2, 1, 3, 4)), labels=np.array([0, 1]))
    images = read_images(path)
    assert (images.pixels.shape, images.pixels.dtype, images.size) == ((2, 3, 3, 4), np.float32, (3, 4))
    assert images.labels == ("0", "1")


ONE = np.zeros((2, 3, 4, 3), np.uint8)
FLOAT = np.zeros((2, 3, 4, 4), np.float32)


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"images": ONE}, "lacks the array 'labels'"),
        ({"images": ONE[:0], "labels": np.array([], int)}, "holds no images"),
        ({"images": ONE, "labels": np.array([1])}, r"has 2 images and labels of shape \(1,\)"),
        ({"images": ONE, "labels": np.array([0.5, 1])}, "labels of the type float64"),
        ({"images": ONE, "labels": np.array([0, -1])}, "image 1 has the label '-1'"),
        ({"images": ONE, "labels": np.array(["a", ""])}, "image 1 has the label ''"),
        ({"images": ONE, "labels": np.array([0, None], object)}, "it holds pickled objects"),
        ({"images": ONE[..., :2], "labels": np.array([0, 1])}, r"uint8 images of shape \(2, 3, 4, 2\)"),
        ({"images": ONE.astype(np.int64), "labels": np.array([0, 1])}, "images of the type int64"),
        ({"images": FLOAT[:, :2], "labels": np.array([0, 1])}, r"float images of shape \(2, 2, 4, 4\)"),
        (
            {"images": FLOAT + np.array([0, np.nan]).reshape(2, 1, 1, 1), "labels": np.array([0, 1])},
            "image 1 holds NaN or infinity",
        ),
    ],
)
def test_bad_arrays_are_named(tmp_path: Path, arrays: dict[str, Any], fault: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=fault) as caught:
        read_images(path)
    assert message(caught).startswith(str(path))


def test_float_images_are_neither_resized_nor_made_grey(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=FLOAT, labels=np.array([0, 1]))
    with pytest.raises(InputError, match="4x4 pixels, and only uint8 images are resized; store them at 5x5"):
        read_images(path, resize=(5, 5))
    with pytest.raises(InputError, match="colour images as floats"):
        read_images(path, channels=1)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", b"text"])
def test_files_that_are_no_arrays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not (an|a valid) \.npz file|holds pickled") as caught:
        read_images(path)
    message(caught)
    with pytest.raises((InputError, FileSystemError), match="is not a file"):
        read_images(tmp_path / "none.npz")


def test_real_traffic_signs(shared_data: Path, tmp_path: Path) -> None:
    with tarfile.open(shared_data / "vision" / "gtsrb-train-subset.tar.gz") as archive:
        chosen = []
        for member in archive:
            if "/20_kmh/" in member.name or "/100_kmh/" in member.name:
                chosen.append(member)
        archive.extractall(tmp_path, members=chosen, filter="data")
    folder = tmp_path / "GTSRB" / "Final_Training" / "Images"
    images = read_images(folder, resize=(32, 32))
    assert images.pixels.shape == (200, 32, 32, 3)
    assert labels_of(images.labels, "x").names == ("100_kmh", "20_kmh")
    assert images.ignored == 2
