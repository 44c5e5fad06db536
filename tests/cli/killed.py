"""Commands that are killed: before any of the system calls that give files their names, or after some steps."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np

from privctl.cli import run
from tests.forked import Command
from tests.train.state.release_logs import begun as logged

FACTS = ["--epochs", "2", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "5"]
PLAN = ["account", "--noise-multiplier", "1", "--delta", "1e-5", "--no-peers", "--method", "naive"]
CALLS = ("rename", "replace", "link", "unlink", "rmdir")
#: Those by which content comes into files, too.
WRITES = (*CALLS, "mkdir", "write", "pwrite", "ftruncate")


def prepare(folder: Path, write_model: Callable[..., Path]) -> Path:
    """A model, data with e-mail addresses, data with nothing to find."""
    folder.mkdir()
    write_model(folder / "m.safetensors", {"w": np.ones(1000, np.float32)})
    rows = (json.dumps({"text": f"the record {i} of person{i}@example.org"}) for i in range(40))
    (folder / "d.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "bare.jsonl").write_text('{"text": "nothing here"}\n' * 40)
    return folder


def noise(folder: Path) -> list[str]:
    return ["noise", str(folder / "m.safetensors"), "-q", "-f", "--epsilon", "1", "--epsilon", "2", *FACTS]


def plant(folder: Path) -> list[str]:
    place = ["-o", str(folder / "p.jsonl"), "--manifest", str(folder / "p.json")]
    return ["canary", "plant", str(folder / "d.jsonl"), "-q", "-f", "--count", "20", *place]


def scan(folder: Path) -> list[str]:
    return ["secrets", "scan", str(folder / "d.jsonl"), "-q", "-f", "-o", str(folder / "s.jsonl")]


def killed(arguments: Sequence[str], fatal: int) -> int:
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

        for name in CALLS:
            setattr(os, name, dying(getattr(os, name)))
        code = run(list(arguments))
        os.write(write, f"{code} {count}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    words = os.read(read, 100).decode().split()
    os.close(read)
    assert fatal or words[0] == "0"
    return int(words[1]) if words else 0


def left_by_kills(arguments: Sequence[str], folder: Path, into: Path, calls: Sequence[str] = CALLS) -> list[Path]:
    """Run a command that takes seconds once; returns copies of ``folder`` as each kill would have left it."""

    def called() -> None:
        assert run(list(arguments)) == 0

    return copied_at(called, folder, into, calls)


def copied_at(act: Callable[[], object], folder: Path, into: Path, calls: Sequence[str] = CALLS) -> list[Path]:
    """Copies of ``folder`` as a kill at each of the system ``calls`` that ``act`` makes would have left it.

    A killed process leaves the files as they are before the call it does not get to make; its locks are gone.
    """
    copies: list[Path] = []
    copying = False

    def watched(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            nonlocal copying
            if not copying:  # to copy is to call them too
                copying = True
                copies.append(copied(folder, into / str(len(copies))))
                copying = False
            return call(*args, **kwargs)

        return wrapped

    with mock.patch.multiple(os, **{name: watched(getattr(os, name)) for name in calls}):
        act()
    return copies


def copied(folder: Path, copy: Path) -> Path:
    """A copy in which two names of one file stay that."""
    copy.parent.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", folder, copy], check=True)
    return copy


def contents(folder: Path) -> dict[str, bytes]:
    """What is in ``folder`` under a final name, by name; the state of an unfinished run is not."""
    found = ((path.relative_to(folder), path) for path in folder.rglob("*") if path.is_file())
    return {
        str(name): path.read_bytes()
        for name, path in found
        # The log of audits only grows, and is meant to show an audit that was killed.
        if not any(part[0] == "." or part.endswith((".run", ".audits.jsonl")) for part in name.parts)
    }


def stamped(folder: Path) -> dict[str, bytes]:
    """The same, each with its inode: no two runs share that, whatever they write."""
    return {name: b"%d " % (folder / name).stat().st_ino + held for name, held in contents(folder).items()}


def touched(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    """Names of what came, went or changed."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def ended(process: subprocess.Popen[str] | Command, begun: Path, number: int) -> tuple[int, str]:
    """Send a started command a signal after some steps; its exit code and what it said."""
    deadline = time.monotonic() + 120
    while not logged(begun) > 12:
        assert process.poll() is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    errors = process.communicate()[1]
    return process.returncode, errors
