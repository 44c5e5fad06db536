"""Opening models: one file, a directory, shards with an index; everything that does not fit is one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from privctl.domain.errors import FileSystemError, InputError
from privctl.storage.reader import INDEX_NAME, SINGLE_NAME, SafetensorsFile, open_checkpoint, read_text, weight_map

WriteModel = Callable[..., Path]
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def test_a_folder_with_both_forms_is_refused(tmp_path: Path, write_model: WriteModel) -> None:
    write_model(tmp_path / SINGLE_NAME, {"w": np.ones(2, np.float32)})
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"w": SINGLE_NAME}}))
    refused(tmp_path, "holds both")


def refused(path: Path, *names: str) -> str:
    """The sentence with which a model is refused; it must name ``names``."""
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    for name in names:
        assert name in message
    return message


@pytest.fixture
def sharded(tmp_path: Path, write_model: WriteModel) -> Path:
    """A directory of two shards holding a, b and c."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    write_model(folder / SHARDS[0], {"a": np.arange(4, dtype=np.float32), "b": np.ones((2, 2))})
    write_model(folder / SHARDS[1], {"c": np.zeros(3, np.int64)})
    reindex(folder, {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]})
    return folder


def reindex(folder: Path, weight_map: Any) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 72}, "weight_map": weight_map}))


def test_a_single_file_is_read(tmp_path: Path, write_model: WriteModel) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write_model(tmp_path / "any name.safetensors", {"w": values, "s": np.array(1.5)}, {"format": "pt"})
    with open_checkpoint(path) as checkpoint:
        assert not checkpoint.is_directory
        assert checkpoint.folder == tmp_path
        ((file, w), (_, s)) = checkpoint.tensors()
        assert (w.name, w.dtype, w.shape, w.size, w.elements) == ("w", "F32", (2, 3), 24, 6)
        assert (s.name, s.shape, s.elements) == ("s", (), 1)
        assert dict(file.metadata) == {"format": "pt"}
        assert bytes(file.read(w)) == values.tobytes()
        assert bytes(file.read(w, 4, 8)) == values.tobytes()[4:12]
        assert bytes(file.read(w, 20)) == values.tobytes()[20:]


def test_a_directory_with_one_file(tmp_path: Path, write_model: WriteModel) -> None:
    write_model(tmp_path / SINGLE_NAME, {"w": np.ones(2)})
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.is_directory
        assert checkpoint.folder == tmp_path
        assert [t.name for _, t in checkpoint.tensors()] == ["w"]


def test_all_shards_are_read(sharded: Path) -> None:
    with open_checkpoint(sharded) as checkpoint:
        assert [f.path.name for f in checkpoint.files] == list(SHARDS)
        held = {t.name: bytes(f.read(t)) for f, t in checkpoint.tensors()}
    assert held["a"] == np.arange(4, dtype=np.float32).tobytes()
    assert set(held) == {"a", "b", "c"}


def test_a_missing_shard(sharded: Path) -> None:
    (sharded / SHARDS[1]).unlink()
    assert "is not in" in refused(sharded, INDEX_NAME, SHARDS[1])


def test_a_damaged_shard(sharded: Path) -> None:
    (sharded / SHARDS[1]).write_bytes((sharded / SHARDS[1]).read_bytes()[:-1])
    assert "truncated" in refused(sharded, SHARDS[1])


def test_a_tensor_in_another_shard_than_the_index_says(sharded: Path) -> None:
    reindex(sharded, {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]})
    assert "does not hold it" in refused(sharded, INDEX_NAME, "'b'", SHARDS[1])


def test_a_tensor_no_shard_holds(sharded: Path) -> None:
    reindex(sharded, {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1], "d": SHARDS[1]})
    assert "does not hold it" in refused(sharded, INDEX_NAME, "'d'")


def test_a_tensor_the_index_forgets(sharded: Path) -> None:
    reindex(sharded, {"a": SHARDS[0], "c": SHARDS[1]})
    assert "does not list" in refused(sharded, INDEX_NAME, "'b'", SHARDS[0])


def test_a_tensor_in_two_shards(sharded: Path, write_model: WriteModel) -> None:
    write_model(sharded / SHARDS[1], {"c": np.zeros(3), "a": np.zeros(3)})
    assert "two shards" in refused(sharded, "'a'")


@pytest.mark.parametrize(
    "shard",
    [
        *("../secret.safetensors", "/etc/passwd", "sub/m.safetensors", "./m.safetensors"),
        *("..", ".", "", "a\0b", "n" * 300, "é" * 200),
    ],
)
def test_a_shard_must_be_a_file_beside_the_index(sharded: Path, shard: str, write_model: WriteModel) -> None:
    write_model(sharded.parent / "secret.safetensors", {"c": np.zeros(3)})
    (sharded / "sub").mkdir()
    write_model(sharded / "sub" / "m.safetensors", {"c": np.zeros(3)})
    write_model(sharded / "m.safetensors", {"c": np.zeros(3)})
    reindex(sharded, {"a": SHARDS[0], "b": SHARDS[0], "c": shard})
    refused(sharded, INDEX_NAME)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": null}',
        "",
        "{",
        '{"weight_map": {"a": "x", "a": "y"}}',
    ],
)
def test_a_malformed_index(sharded: Path, text: str) -> None:
    (sharded / INDEX_NAME).write_text(text)
    refused(sharded, INDEX_NAME)


@pytest.mark.parametrize("metadata", [None, [], "absent"])
def test_an_index_that_transformers_would_not_load_is_refused_with_what_to_add(sharded: Path, metadata: object) -> None:
    path = sharded / INDEX_NAME
    index = json.loads(path.read_text()) | {"metadata": metadata}
    if metadata == "absent":
        del index["metadata"]
    path.write_text(json.dumps(index))
    assert 'add "metadata": {} beside "weight_map"' in refused(sharded, INDEX_NAME, 'has no "metadata"')
    path.write_text(json.dumps(index | {"metadata": {}}))
    with open_checkpoint(sharded) as checkpoint:
        assert len(checkpoint.files) == 2
    del index["weight_map"]
    path.write_text(json.dumps(index | {"metadata": {}}))
    refused(sharded, INDEX_NAME, 'has no "weight_map"', "save the model again")


def test_an_index_that_is_not_text(sharded: Path) -> None:
    (sharded / INDEX_NAME).write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refused(sharded, INDEX_NAME)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_a_directory_of_pickles(tmp_path: Path, name: str) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / name)
    assert "save_pretrained" in refused(tmp_path, str(tmp_path), name)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_under_the_name_of_a_model(tmp_path: Path, zipped: bool) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / SINGLE_NAME, _use_new_zipfile_serialization=zipped)
    for path in (tmp_path, tmp_path / SINGLE_NAME):
        assert "pickle" in refused(path, SINGLE_NAME)


def test_nothing_there(tmp_path: Path) -> None:
    assert "neither" in refused(tmp_path, SINGLE_NAME, INDEX_NAME)
    assert "does not exist" in refused(tmp_path / "absent.safetensors", "absent.safetensors")
    assert "does not exist" in refused(tmp_path / "absent" / "m.safetensors", "m.safetensors")
    (tmp_path / "empty.safetensors").touch()
    assert "0 bytes" in refused(tmp_path / "empty.safetensors", "empty.safetensors")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is a device or a pipe; give a regular file"):
        open_checkpoint(tmp_path / "pipe")


def test_a_path_through_a_file(tmp_path: Path, write_model: WriteModel) -> None:
    write_model(tmp_path / "m.safetensors", {"w": np.ones(2)})
    assert "is not a file" in refused(tmp_path / "m.safetensors" / "x", "m.safetensors")


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="loop is not a file; check the path"):
        read_text(tmp_path / "loop")


def test_a_path_too_long_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises((InputError, FileSystemError), match="cannot be read|is not a file"):
        open_checkpoint(tmp_path / ("n" * 300))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_without_permission_is_one_sentence(tmp_path: Path, write_model: WriteModel) -> None:
    path = write_model(tmp_path / "m.safetensors", {"w": np.ones(2)})
    path.chmod(0)
    with pytest.raises(FileSystemError, match="cannot be read: Permission denied"):
        open_checkpoint(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, write_model: WriteModel) -> None:
    path = write_model(tmp_path / "m.safetensors", {"w": np.ones(1000)})
    with SafetensorsFile(path) as file:
        with path.open("r+b") as stream:
            stream.truncate(500)
        with pytest.raises(InputError, match=r"m\.safetensors became shorter"):
            file.read(file.tensors[0])


def test_failed_openings_release_their_descriptors(sharded: Path) -> None:
    reindex(sharded, {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]})
    (sharded.parent / "broken.safetensors").write_bytes(b"\0" * 20)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        refused(sharded)
        refused(sharded.parent / "broken.safetensors")
    assert len(os.listdir("/proc/self/fd")) == before


def test_text_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        read_text(tmp_path / "absent")
    with pytest.raises(InputError, match="is not a file"):
        read_text(tmp_path)
    (tmp_path / "f").write_bytes(b"\xff")
    with pytest.raises(InputError, match="f is not UTF-8"):
        read_text(tmp_path / "f")


def test_a_file_written_to_whose_time_was_set_back_is_another(tmp_path: Path, write_model: WriteModel) -> None:
    """Size and time of the last write are what they were; the system's own time of the change is not."""
    path = write_model(tmp_path / SINGLE_NAME, {"w": np.ones(2, np.float32)})
    with SafetensorsFile(path) as file:
        file.require_unchanged()
        before, content = os.stat(path), path.read_bytes()
        with path.open("r+b") as stream:
            stream.write(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (os.stat(path).st_mtime_ns, os.stat(path).st_size) == (before.st_mtime_ns, before.st_size)
        with pytest.raises(InputError, match="was changed since it was opened"):
            file.require_unchanged()


def test_the_weight_map_is_returned_as_it_stands(sharded: Path) -> None:
    assert weight_map(sharded / INDEX_NAME) == {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]}


def test_a_real_pretrained_model(shared_data: Path) -> None:
    with open_checkpoint(shared_data / "stories260k") as checkpoint:
        found = {t.name: (f, t) for f, t in checkpoint.tensors()}
        expected = load_file(shared_data / "stories260k" / SINGLE_NAME)
        assert set(found) == set(expected)
        for name, (file, tensor) in found.items():
            assert bytes(file.read(tensor)) == expected[name].numpy().tobytes()
