"""Every format of data through the one door: the same records from each, in little memory, and every fault named."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from blake3 import blake3
from PIL import Image

from privctl.data import arrow, packed
from privctl.data.columns import Columns
from privctl.data.count import count_examples
from privctl.data.images import read_images
from privctl.data.places import data_files
from privctl.data.recorded import data_digest, recorded_files
from privctl.data.records import read_records
from privctl.data.texts import iter_texts, read_texts
from privctl.domain.errors import InputError, PrivctlError
from tests.few import few
from tests.work import memory

ROWS = [{"text": f"record {i} says é", "label": i % 2, "who": f"p{i // 2}"} for i in range(5)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def stream(path: Path, rows: list[dict[str, Any]], new: Callable[..., Any] = pa.ipc.new_stream, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    with new(str(path), table.schema, **options) as writer:
        writer.write_table(table)
    return path


def saved(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A folder as ``datasets`` saves it."""
    half = len(rows) // 2
    names = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
    for name, part in zip(names, (rows[:half], rows[half:]), strict=True):
        stream(path / name, part)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def table(path: Path, delimiter: str) -> Path:
    lines = [list(ROWS[0]), *([str(value) for value in row.values()] for row in ROWS)]
    path.write_text("".join(delimiter.join(cells) + "\n" for cells in lines), encoding="utf-8")
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


MADE: dict[str, Callable[[Path], Path]] = {
    "JSON lines": lambda at: written(at / "a.jsonl", LINES.encode()),
    "gzip": lambda at: written(at / "a.jsonl.gz", gzip.compress(LINES.encode())),
    "Zstandard": lambda at: written(at / "a.jsonl.zst", zstandard.compress(LINES.encode())),
    "two frames": lambda at: written(
        at / "a.jsonl.zst", zstandard.compress(LINES[:60].encode()) + zstandard.compress(LINES[60:].encode())
    ),
    "an array": lambda at: written(at / "a.json", json.dumps(ROWS, indent=1, ensure_ascii=False).encode()),
    "lines in .json": lambda at: written(at / "a.json", LINES.encode()),
    "CSV": lambda at: table(at / "a.csv", ","),
    "TSV": lambda at: table(at / "a.tsv", "\t"),
    "parquet": lambda at: parquet(at / "a.parquet", ROWS, row_group_size=2),
    "parquet, compressed": lambda at: parquet(at / "a.parquet", ROWS, compression="zstd", use_dictionary=["text"]),
    "an Arrow stream": lambda at: stream(at / "a.arrow", ROWS),
    "an Arrow file": lambda at: stream(at / "a.arrow", ROWS, pa.ipc.new_file),
    "a saved folder": lambda at: saved(at / "set", ROWS),
    "shards": lambda at: (
        parquet(at / "hub/data/train-00000-of-00002.parquet", ROWS[:2]).parent
        and parquet(at / "hub/data/train-00001-of-00002.parquet", ROWS[2:]).parent.parent
    ),
    "a split of shards": lambda at: (
        MADE["shards"](at) and parquet(at / "hub/data/test-00000-of-00001.parquet", ROWS) and at / "hub/train"
    ),
    "a pattern": lambda at: MADE["shards"](at) / "data/*.parquet",
}


@pytest.mark.parametrize("name", MADE)
def test_every_format_gives_the_same_records(tmp_path: Path, name: str) -> None:
    path = MADE[name](tmp_path)
    found = read_texts(path, labelled=True, unit="who")
    assert [(r.text, r.label, r.unit) for r in found] == [(r["text"], str(r["label"]), r["who"]) for r in ROWS]
    assert [record.text for record in read_records(path)] == [row["text"] for row in ROWS]
    assert count_examples(path) == 5
    assert count_examples(path, "who") == 3
    lines = [record.line for record in found]
    assert lines == sorted(set(lines)), "no two records of a set have one number"
    other = read_texts(path, labelled=True, columns=Columns(text="who", label="text"))
    assert [(r.text, r.label) for r in other] == [(r["who"], r["text"]) for r in ROWS]


def test_text_is_a_record_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"\xef\xbb\xbfone, two\r\n\n \nthree")
    assert [(r.line, r.text) for r in read_texts(path)] == [(1, "one, two"), (4, "three")]


@pytest.mark.parametrize("begin", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\xef\xbb\xbf \r\n\n"])
def test_a_byte_order_mark_is_no_record(tmp_path: Path, begin: bytes) -> None:
    path = written(tmp_path / "a.jsonl", begin + b'{"text": "one"}\n')
    assert [(r.line, r.text) for r in read_texts(path)] == [(begin.count(b"\n") + 1, "one")]
    assert count_examples(path) == 1


@pytest.mark.parametrize("name", few(["lines in .json", "an array", "parquet", "an Arrow stream", "gzip"], 0, 2))
def test_standard_input(tmp_path: Path, name: str) -> None:
    code = (
        "from pathlib import Path\nfrom privctl.data.places import data_files\n"
        "from privctl.data.recorded import data_digest\n"
        "from privctl.data.texts import read_texts\np = Path('-')\n"
        "one, two = ([r.text for r in read_texts(p)] for _ in range(2))\n"
        "print(one == two, len(one), data_digest(p))\n"
        "f = data_files(p)[0]\nprint(f, oct(f.parent.stat().st_mode & 0o777))"
    )
    path = MADE[name](tmp_path)
    with path.open("rb") as source:
        done = subprocess.run([sys.executable, "-c", code], stdin=source, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == f"True 5 {data_digest(path)}"
    kept, mode = second.split(" ")
    assert mode == "0o700"
    assert not Path(kept).exists(), "what was kept is removed at the end"


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    whole.save_to_disk(tmp_path / "one", num_shards=2)
    datasets.DatasetDict(train=whole, test=whole).save_to_disk(tmp_path / "two")
    for path in (tmp_path / "one", tmp_path / "two" / "train"):
        assert [r.text for r in read_texts(path, labelled=True)] == [row["text"] for row in ROWS]
    with pytest.raises(InputError, match=r"holds the splits train, test; give one of them, such as .*two/train$"):
        read_texts(tmp_path / "two")


def test_what_is_recorded_of_data(tmp_path: Path) -> None:
    one = MADE["JSON lines"](tmp_path)
    assert data_digest(one) == "blake3:" + blake3(LINES.encode()).hexdigest(), "a file's digest is that of its bytes"
    folder = MADE["shards"](tmp_path)
    files = recorded_files(folder)
    assert [file.path.name for file in files] == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    lines = (f"{f.path.name}\0blake3:{blake3(f.path.read_bytes()).hexdigest()}\n".encode() for f in files)
    assert data_digest(folder) == "blake3:" + blake3(b"".join(lines)).hexdigest()
    assert data_digest(folder / "data/*.parquet") == data_digest(folder)
    files[0].path.write_bytes(files[1].path.read_bytes())
    assert data_digest(folder) != "blake3:" + blake3(b"".join(lines)).hexdigest()


@pytest.mark.parametrize(
    ("rows", "text", "start"),
    [
        ({"prompt": "a", "completion": "b"}, "a\nb", 2),
        ({"instruction": "a", "output": "b"}, "a\nb", 2),
        ({"instruction": "a", "input": "", "output": "b"}, "a\nb", 2),
        ({"instruction": "a", "input": "x", "response": "b"}, "a\nx\nb", 4),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "a\nb", 2),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_forms_of_a_record(tmp_path: Path, rows: dict[str, Any], text: str, start: int, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        path.write_text(json.dumps(rows))
    else:
        parquet(path, [rows])
    (record,) = read_texts(path)
    assert (record.text, record.start) == (text, start)


def png(colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (colour, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_in_a_table(tmp_path: Path) -> None:
    rows = [{"img": {"bytes": png(i), "path": None}, "fine": i % 2} for i in range(5)]
    for path in (parquet(tmp_path / "a.parquet", rows), saved(tmp_path / "set", rows)):
        images = read_images(path, columns=Columns(label="fine"))
        assert images.labels == ("0", "1", "0", "1", "0")
        assert images.pixels.shape == (5, 3, 4, 3)
        assert images.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
        assert count_examples(path) == 5
    with pytest.raises(InputError, match=r"no column 'label' .* 'img', 'fine'; name one with --label-column"):
        read_images(tmp_path / "a.parquet")
    rows[3]["img"] = {"bytes": None, "path": "cat.png"}
    with pytest.raises(InputError, match="row 4 names a file as 'img' and holds no bytes"):
        read_images(parquet(tmp_path / "b.parquet", rows), columns=Columns(label="fine"))
    rows[3]["img"] = {"bytes": b"no image", "path": None}
    with pytest.raises(InputError, match="row 4 is not a JPEG, PNG or PPM image"):
        read_images(parquet(tmp_path / "b.parquet", rows), columns=Columns(label="fine"))


@pytest.mark.parametrize("suffix", few([".parquet", ".arrow", ".json", ".jsonl.zst"], 0, 2))
def test_records_are_streamed(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": os.urandom(4000).hex()} for _ in range(3000)]
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        parquet(path, rows, row_group_size=500, use_dictionary=False)
    elif suffix == ".arrow":
        stream(path, rows)
        with pa.ipc.new_stream(str(path), pa.schema([("text", pa.string())])) as writer:
            for start in range(0, 3000, 500):
                writer.write_table(pa.Table.from_pylist(rows[start : start + 500]))
    else:
        content = json.dumps(rows) if suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(zstandard.compress(content.encode()) if suffix == ".jsonl.zst" else content.encode())
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0

    def read() -> None:
        nonlocal most
        for record in iter_texts(path):
            assert len(record.text) == 8000
            most = max(most, pool.bytes_allocated() - before)

    assert memory(read) < 10 << 20, "two batches of 4 MB, of 24 MB in all"
    assert most < 12 << 20


MISTAKES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "null": (lambda at: parquet(at / "a.parquet", [{"text": "a"}, {"text": None}]), "row 2 has null as 'text'"),
    "empty": (lambda at: parquet(at / "a.parquet", [{"text": "a"}, {"text": " "}]), "row 2 has an empty 'text'"),
    "a number": (lambda at: parquet(at / "a.parquet", [{"text": 1}]), "row 1 has a number as 'text'"),
    "another type": (
        lambda at: parquet(at / "a.parquet", [{"text": b"a"}, {"text": b"b"}]),
        "row 1 has no text as 'text'; expected a string",
    ),
    "a list": (lambda at: parquet(at / "a.parquet", [{"text": ["a"]}]), "row 1 has a list as 'text'"),
    "no text": (
        lambda at: parquet(at / "a.parquet", [{"body": "a", "id": 1}]),
        "its columns are 'body', 'id'; name the one that holds the text with --text-column",
    ),
    "two forms": (lambda at: parquet(at / "a.parquet", [{"text": "a", "prompt": "b"}]), "or give --text-column text"),
    "no rows": (lambda at: parquet(at / "a.parquet", [{"text": "a"}][:0] or [{"text": None}]), "null as 'text'"),
    "shards of two schemas": (
        lambda at: parquet(parquet(at / "s/a.parquet", [{"text": "a"}]).with_name("b.parquet"), [{"text": 3}]).parent,
        "b.parquet has the column 'text' of the type int64, and the files before it of the type string",
    ),
    "formats": (
        lambda at: written(parquet(at / "s/a.parquet", ROWS).with_name("a.csv"), b"text\na\n").parent,
        r"several formats \(.csv, .parquet\); give a pattern",
    ),
    "a missing shard": (
        lambda at: parquet(at / "s/train-00000-of-00002.parquet", ROWS).parent,
        "has 1 of its 2 shards",
    ),
    "no match": (lambda at: at / "*.parquet", "matches no file; check the pattern, and quote it"),
    "an empty folder": (lambda at: (at / "s").mkdir() or at / "s", "holds no file of records; expected .jsonl"),
    "a saved folder without its file": (
        lambda at: (saved(at / "s", ROWS) / "data-00001-of-00002.arrow").unlink() or at / "s",
        "lacks data-00001-of-00002.arrow",
    ),
    "a file elsewhere": (
        lambda at: (
            (saved(at / "s", ROWS) / "state.json").write_text('{"_data_files": [{"filename": "../../etc/passwd"}]}')
            and at / "s"
        ),
        "names no files beside it",
    ),
    "text as parquet": (lambda at: written(at / "a.parquet", b"text\nno parquet\n"), "is not a complete parquet file"),
    "nothing as parquet": (lambda at: written(at / "a.parquet", b""), "is not a complete parquet file"),
    "text as Arrow": (lambda at: written(at / "a.arrow", b"text and no Arrow\n"), "is not an Arrow file"),
    "compressed Arrow": (
        lambda at: stream(at / "a.arrow", ROWS, options=pa.ipc.IpcWriteOptions(compression="zstd")),
        "is compressed inside",
    ),
    "an array cut off": (lambda at: written(at / "a.json", b'[{"text": "a"}, {"te'), "record 2 is no valid JSON"),
    "two arrays": (lambda at: written(at / "a.json", b'[{"text": "a"}] []'), "goes on after its JSON array"),
    "an array of strings": (lambda at: written(at / "a.json", b'["a"]'), "record 1 is a string"),
    "a cut Zstandard file": (
        lambda at: written(
            at / "a.jsonl.zst", zstandard.compress(json.dumps({"text": os.urandom(200_000).hex()}).encode())[:150_000]
        ),
        "is not a complete Zstandard file",
    ),
    "no messages": (
        lambda at: written(at / "a.jsonl", b'{"messages": []}'),
        "has an empty list as 'messages'; expected a list of messages, at least one",
    ),
    "a message without a role": (
        lambda at: written(at / "a.jsonl", b'{"messages": [{"content": "a"}]}'),
        "line 1 message 1 lacks 'role'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_sentence(tmp_path: Path, name: str) -> None:
    make, fault = MISTAKES[name]
    with pytest.raises(PrivctlError, match=fault) as caught:
        read_texts(make(tmp_path))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_files_that_are_cut_or_changed_anywhere(tmp_path: Path, suffix: str) -> None:
    """Each is read to its end or refused in one sentence; none ends the program."""
    path = (parquet if suffix == ".parquet" else stream)(tmp_path / f"a{suffix}", ROWS * 20)
    good = path.read_bytes()
    refused = 0
    for place in range(0, len(good), max(1, len(good) // 150)):
        changed = bytearray(good)
        changed[place : place + 4] = b"\xff\xff\xff\x7f"
        for content in (good[:place], bytes(changed)):
            path.write_bytes(content)
            try:
                read_texts(path)
            except PrivctlError as error:
                assert "\n" not in str(error)
                refused += 1
    assert refused > 150


def test_what_tables_may_unpack_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": "the same " * 1000}] * 3000
    path = parquet(tmp_path / "a.parquet", rows)
    assert path.stat().st_size < 100_000
    assert sum(1 for _ in iter_texts(path)) == 3000
    monkeypatch.setattr(arrow, "MOST_UNPACKED", 1 << 20)
    with pytest.raises(InputError, match="unpacks to more than .* 100 times its size"):
        read_texts(path)
    plain = parquet(tmp_path / "b.parquet", [{"text": "0" * (1 << 20)}], compression="zstd", use_dictionary=False)
    monkeypatch.setattr(arrow, "LARGEST_CHUNK", 1 << 16)
    with pytest.raises(InputError, match="has a column that unpacks to .* more than 100 times"):
        read_texts(plain)
    monkeypatch.setattr(arrow, "LARGEST_BATCH", 100)
    with pytest.raises(InputError, match="has a batch of .* bytes, and 100 are read"):
        read_texts(stream(tmp_path / "a.arrow", ROWS))
    monkeypatch.setattr(packed, "MOST_UNPACKED", 1 << 20)
    bomb = written(tmp_path / "a.jsonl.zst", zstandard.compress(b'{"text": "a"}\n' * (1 << 18)))
    with pytest.raises(InputError, match=r"unpacks to more than .* give it without \.zst"):
        read_texts(bomb)
    one_line = written(tmp_path / "b.jsonl.zst", zstandard.compress(b"a" * (packed.LONGEST_LINE + 2)))
    with pytest.raises(InputError, match="line 1 has more than 64 MiB"):
        read_texts(one_line)


def test_an_arrow_body_larger_than_its_file(tmp_path: Path) -> None:
    path = stream(tmp_path / "a.arrow", ROWS)
    content = bytearray(path.read_bytes())
    first = struct.unpack_from("<i", content, 4)[0] + 8  # the schema's message has no body
    message = struct.unpack_from("<I", content, first + 8)[0]
    place = arrow._place(bytes(content[first + 8 :]), message, 3)
    assert place is not None
    struct.pack_into("<q", content, first + 8 + place, 1 << 29)
    path.write_bytes(content)
    with pytest.raises(InputError, match="is cut off"):
        read_texts(path)


def test_pickled_types_are_refused(tmp_path: Path) -> None:
    marked = pa.field("text", pa.string(), metadata={"ARROW:extension:name": "arrow.py_extension_type"})
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(str(path), pa.schema([marked])) as writer:
        writer.write_table(pa.table({"text": ["a"]}, schema=pa.schema([marked])))
    with pytest.raises(InputError, match="'text' of a pickled type, which can run code"):
        read_texts(path)


def test_class_folders_with_other_files_beside_them(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png(1))
    (tmp_path / "notes.txt").write_text("not a record")
    assert count_examples(tmp_path) == 2
    whole = blake3(png(1)).hexdigest()
    lines = f"cat/a.png\0blake3:{whole}\ndog/a.png\0blake3:{whole}\n".encode()
    (recorded,) = recorded_files(tmp_path)
    assert (recorded.path, recorded.bytes) == (tmp_path, 2 * len(png(1)))
    assert recorded.digest == data_digest(tmp_path) == "blake3:" + blake3(lines).hexdigest()
    (tmp_path / "cat" / "a.png").rename(tmp_path / "cat" / "b.png")
    assert data_digest(tmp_path) != recorded.digest
    assert read_images(tmp_path).labels == ("cat", "dog")
    with pytest.raises(InputError, match="names no column|several formats|holds no"):
        data_files(written(tmp_path / "table.csv", b"a,b\n").parent)
