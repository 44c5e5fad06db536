"""Where results go: standard output, devices and pipes stay what they are, and who may read what is written."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from tests.cli.killed import FACTS, PLAN, noise, plant, prepare, scan


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


@pytest.mark.parametrize("output", ["/dev/null", "pipe", "-"])
def test_nothing_is_written_beside_what_is_no_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for name in ("a.jsonl", "b.jsonl"):
        Path(name).touch()
    devices, before = sorted(os.listdir("/dev")), sorted(os.listdir())
    scores = ["--members", "a.jsonl", "--nonmembers", "b.jsonl"]
    for command in (
        ["noise", str(model), "--epsilon", "1", *FACTS],
        ["noise", str(model), "--epsilon", "1", "--epsilon", "2", *FACTS],
        ["audit", str(model), *scores],
    ):
        for flags in ([], ["-f"]):
            assert run([*command, *flags, "-o", output]) == 2
            assert f"{output} is not a regular file" in capsys.readouterr().err
    assert run(["audit", str(model), *scores, "--log", output, "-o", "x.json"]) == 2
    assert "choose another --log" in capsys.readouterr().err
    assert sorted(os.listdir("/dev")) == devices
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    "command", [["demo"], ["shadow", "start", "--data", "a.jsonl", "--data", "b.jsonl", "--count", "4"]]
)
def test_a_folder_is_not_made_with_its_parents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*command, "-q", "-o", "gone/new"]) == 2
    assert f"{tmp_path / 'gone'} is not a folder to write new into; make it first" in capsys.readouterr().err
    assert run([*command, "-q", "-o", "/dev/null"]) == 2
    assert "/dev/null exists and is n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_linked_report_stays_a_link(report: Path, tmp_path: Path) -> None:
    path, link = tmp_path / "elsewhere.json", tmp_path / "link.json"
    link.symlink_to(path)
    assert run([*PLAN, "-q", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads(path.read_text())


# Who may read it.


def test_only_the_released_model_may_be_read_by_others(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    old = os.umask(0o022)
    try:
        prepare(tmp_path / "f", write_model)
        for arguments in (noise, plant, scan):
            assert run(arguments(tmp_path / "f")) == 0
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "f").iterdir()}
    released = {name for name in modes if name.startswith("m.private") and name.endswith(".safetensors")}
    assert {modes.pop(name) for name in released} == {0o644}
    for name in ("m.safetensors", "d.jsonl", "bare.jsonl"):
        modes.pop(name)
    assert len(modes) >= 6
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_cut_off_is_an_error(tmp_path: Path, unbuffered: str) -> None:
    """Also where Python does not buffer, as in many containers, and would say nothing of what was not written."""
    with open(tmp_path / "help.txt", "wb") as out:
        done = subprocess.run(
            ["bash", "-c", 'ulimit -f 1 && exec "$@"', "bash", sys.executable, "-m", "privctl", "audit", "--help-all"],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, stdout=out, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr == b"privctl: the operating system refused: File too large; files written earlier are intact\n"
    assert (tmp_path / "help.txt").stat().st_size <= 1024


@pytest.mark.parametrize(("command", "code"), [(["verify"], 0), (["gate", "--max-epsilon", "0.1"], 1)])
def test_a_closed_standard_output_does_not_change_the_verdict(report: Path, command: list[str], code: int) -> None:
    """As in a daemon, or ``privctl verify ... >&-``."""
    call = shlex.join([*command, str(report)])
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m privctl {call} >&-"], capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)


def test_a_reader_that_leaves_is_no_failed_policy(report: Path) -> None:
    call = [sys.executable, "-m", "privctl", "gate", str(report), "--format", "json", "--max-epsilon", "1000"]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(call, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (4, b"")


def test_a_folder_that_may_only_be_read_is_refused_before_the_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read-only file system is one for root too. What only looks as if it lay there is still written."""
    (tmp_path / "link.json").symlink_to(tmp_path / "other" / "plan.json")
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    records = tmp_path / "m.jsonl"
    records.write_text('{"text": "a"}\n{"text": "b"}\n')
    place = str(tmp_path / "out.jsonl")
    audit = ["audit", "membership", str(model), "--members", str(records), "--nonmembers", str(model)]
    for call in ([*PLAN, "-o", place], ["secrets", "scan", str(records), "-o", place], [*audit, "-o", place]):
        assert run([*call, "-q"]) == 4
        shown = capsys.readouterr()
        assert (shown.out, f"{tmp_path} may only be read; choose another folder" in shown.err) == ("", True)
    assert run([*PLAN, "-q", "-o", str(tmp_path / "link.json")]) == 0
    assert run([*PLAN, "-q", "-o", "/dev/null"]) == 0
    assert (tmp_path / "other" / "plan.json").is_file()


def test_a_name_that_is_too_long_is_to_be_shorter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "-q", "-o", str(tmp_path / ("n" * 250))]) == 4
    assert "cannot be written: File name too long; choose a shorter one" in capsys.readouterr().err
