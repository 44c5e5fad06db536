"""Files whose names are not UTF-8: one sentence, and every file left as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from tests.gate.made import PROVED, making
from tests.hostile.bombs import facts

ODD = os.fsdecode(b"odd\xff\xfe")


def refused(call: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The call ends with one sentence and changes nothing."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code = run(call)
    stderr = capsys.readouterr().err.strip().splitlines()
    assert code in (2, 3), (call, code, stderr)
    assert "is not UTF-8" in stderr[-1]
    assert "rename" in stderr[-1]
    assert not [line for line in stderr if "internal error" in line or "Traceback" in line]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"text": f"call 555-0100{i} now"}) + "\n" for i in range(40)))
    return path


def test_noise_refuses_names_that_are_not_text(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {"w": np.arange(8, dtype=np.float32)}
    odd = write_model(tmp_path / f"{ODD}.safetensors", weights)
    refused(["noise", str(odd), *facts(), "-q"], tmp_path, capsys)
    plain = write_model(tmp_path / "m.safetensors", weights)
    refused(["noise", str(plain), *facts(), "-q", "-o", str(tmp_path / f"{ODD}2.safetensors")], tmp_path, capsys)


def test_a_companion_of_the_model(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder / "model.safetensors", {"w": np.arange(8, dtype=np.float32)})
    (folder / f"{ODD}.json").write_text("{}")
    code = run(["noise", str(folder), *facts(), "-q", "-o", str(tmp_path / "out")])
    stderr = capsys.readouterr().err
    assert code in (0, 3)
    if code:
        assert "is not UTF-8" in stderr
        assert not (tmp_path / "out").exists()


def test_scan_and_plant(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / f"{ODD}.jsonl"
    odd.write_bytes(data.read_bytes())
    book, planted = str(tmp_path / "book.jsonl"), str(tmp_path / "planted.jsonl")
    refused(["secrets", "scan", str(odd), "-o", book, "-q"], tmp_path, capsys)
    refused(["secrets", "scan", str(data), "-o", str(tmp_path / f"{ODD}.book.jsonl"), "-q"], tmp_path, capsys)
    refused(["canary", "plant", str(odd), "-o", planted, "-q"], tmp_path, capsys)
    refused(["canary", "plant", str(data), "-o", str(tmp_path / f"{ODD}p.jsonl"), "-q"], tmp_path, capsys)


def test_verify_refuses_to_write_names_that_are_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = making(tmp_path / "r.report.json", PROVED).rename(tmp_path / f"{ODD}.report.json")
    assert run(["verify", str(odd)]) == 3, "the model is not at hand"
    assert "\\udcff" in ascii(odd.name)
    capsys.readouterr()
    refused(["verify", str(odd), "-o", str(tmp_path / "v.report.json")], tmp_path, capsys)
    assert run(["inspect", str(odd)]) == 3
    assert "internal" not in capsys.readouterr().err
    assert run(["gate", str(odd), "--max-epsilon", "8"]) in (0, 1, 3)
