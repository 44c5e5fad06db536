"""Where results go: standard output, devices and pipes stay what they are, and a kill leaves a set whole."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from privctl.storage.journal import recover

FACTS = ["--epochs", "2", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "5"]
PLAN = ["account", "--noise-multiplier", "1", "--delta", "1e-5", "--no-peers", "--method", "naive"]


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "m.safetensors", {"w": np.ones(1000, np.float32)})


@pytest.fixture
def report(model: Path) -> Path:
    assert run(["noise", str(model), "-q", "--epsilon", "1", *FACTS]) == 0
    return model.with_name("m.private.report.json")


def commands(report: Path) -> dict[str, list[str]]:
    """Commands that take ``--output`` for what they print or write, without it."""
    return {
        "account": PLAN,
        "verify": ["verify", str(report)],
        "claims": ["claims", "check", "gaussian", "--epsilon", "1", "--delta", "1e-6", "--noise-multiplier", "4.225"],
        "gate": ["gate", str(report), "--format", "json", "--max-epsilon", "1000"],
        "report": ["report", str(report)],
    }


@pytest.mark.parametrize("command", ["account", "verify", "claims", "gate"])
@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_takes_a_report(
    report: Path, command: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    run([*commands(report)[command], "-q", "-o", name])
    assert json.loads(capfd.readouterr().out)
    assert not Path("-").exists()


@pytest.mark.parametrize("command", ["account", "verify", "gate", "report"])
def test_a_device_stays_a_device(report: Path, command: str, tmp_path: Path) -> None:
    """Also with --force, and also for root."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making a device is not permitted here")
    for flags in ([], ["--force"]) if command != "gate" else ([],):
        run([*commands(report)[command], "-q", "-o", str(device), *flags])
        assert device.is_char_device()
    assert [p.name for p in tmp_path.glob(".*")] == []


def test_a_model_is_not_written_over_a_device(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "out.safetensors"
    os.mkfifo(pipe)
    assert run(["noise", str(model), "--epsilon", "1", *FACTS, "-f", "-o", str(pipe)]) == 2
    assert "not a regular file" in capsys.readouterr().err
    assert pipe.is_fifo()
    assert not (tmp_path / "out.report.json").exists()


def test_a_linked_report_stays_a_link(report: Path, tmp_path: Path) -> None:
    place, link = tmp_path / "elsewhere.json", tmp_path / "link.json"
    link.symlink_to(place)
    assert run([*PLAN, "-q", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads(place.read_text())


# Killed at every rename.


def _noise(folder: Path) -> list[str]:
    return ["noise", str(folder / "m.safetensors"), "-q", "-f", "--epsilon", "1", "--epsilon", "2", *FACTS]


def _plant(folder: Path) -> list[str]:
    place = ["-o", str(folder / "p.jsonl"), "--manifest", str(folder / "p.json")]
    return ["canary", "plant", str(folder / "d.jsonl"), "-q", "-f", "--count", "20", *place]


def _scan(folder: Path) -> list[str]:
    return ["secrets", "scan", str(folder / "d.jsonl"), "-q", "-f", "-o", str(folder / "s.jsonl")]


def _prepare(folder: Path, write_model: Callable[..., Path]) -> None:
    folder.mkdir()
    write_model(folder / "m.safetensors", {"w": np.ones(1000, np.float32)})
    rows = (json.dumps({"text": f"the record {i} of person{i}@example.org"}) for i in range(40))
    (folder / "d.jsonl").write_text("\n".join(rows) + "\n")


_CALLS = ("rename", "replace", "link", "unlink")


def _killed(arguments: Sequence[str], fatal: int) -> int:
    """Run a command in a child that dies before the system call of that number; returns how many there were."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def dying(call: Callable[..., object]) -> Callable[..., object]:
            def wrapped(*args: object, **kwargs: object) -> object:
                nonlocal count
                count += 1
                if count == fatal:
                    os.kill(os.getpid(), 9)
                return call(*args, **kwargs)

            return wrapped

        for name in _CALLS:
            setattr(os, name, dying(getattr(os, name)))
        code = run(arguments)
        os.write(write, f"{code} {count}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    said = os.read(read, 100).decode().split()
    os.close(read)
    assert fatal or said[0] == "0"
    return int(said[1]) if said else 0


@pytest.mark.parametrize("arguments", [_noise, _plant, _scan])
def test_a_kill_at_every_rename_leaves_the_old_set_or_the_new_one(
    tmp_path: Path, write_model: Callable[..., Path], arguments: Callable[[Path], list[str]]
) -> None:
    _prepare(tmp_path / "whole", write_model)
    assert run(arguments(tmp_path / "whole")) == 0
    calls = _killed(arguments(tmp_path / "whole"), 0)
    assert calls >= 4
    seen = set()
    for fatal in range(1, calls + 1):
        folder = tmp_path / str(fatal)
        _prepare(folder, write_model)
        assert run(arguments(folder)) == 0
        before = _outputs(folder)
        _killed(arguments(folder), fatal)
        recover(folder)
        after = _outputs(folder)
        changed = [name for name in before if after.get(name) != before[name]]
        assert set(after) == set(before)
        assert len(changed) in (0, len(before)), (fatal, changed)
        seen.add(bool(changed))
    assert seen == {True, False}


def _outputs(folder: Path) -> dict[str, bytes]:
    """What the command wrote, each file as bytes that no two runs share."""
    made = (p for p in folder.iterdir() if p.name not in ("m.safetensors", "d.jsonl") and p.name[0] != ".")
    return {p.name: p.read_bytes() + str(p.stat().st_ino).encode() for p in made}


# Who may read it.


def test_only_the_released_model_may_be_read_by_others(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    old = os.umask(0o022)
    try:
        _prepare(tmp_path / "f", write_model)
        for arguments in (_noise, _plant, _scan):
            assert run(arguments(tmp_path / "f")) == 0
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "f").iterdir()}
    released = {name for name in modes if name.startswith("m.private") and name.endswith(".safetensors")}
    assert {modes.pop(name) for name in released} == {0o644}
    for name in ("m.safetensors", "d.jsonl"):
        modes.pop(name)
    assert len(modes) >= 6
    assert set(modes.values()) == {0o600}
