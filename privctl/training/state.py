"""A run's state on disk: enough to go on after a kill, and a count of everything that may have been released.

The folder holds ``settings.json``, ``state.json``, the tensors it names, and ``begun``: how many steps were ever begun,
written before each of them. Random numbers are not kept: a resumed run draws fresh ones, and whatever was begun after
the state was saved stays in the ledger as spent, because nobody can tell whether something of it got out.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from privctl.codec import parse_json
from privctl.domain.errors import InputFault, UsageFault
from privctl.storage.atomic import new_folder, write_bytes, writing
from privctl.storage.reader import read_text
from privctl.training.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

_STATE, _SETTINGS, _BEGUN = "state.json", "settings.json", "begun"
#: ``begun`` reaches the disk at least this often, in seconds; a killed process loses nothing, a power cut this much.
_SYNC_EVERY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a run goes on from: ``step`` updates are in ``tensors``, ``spent`` steps were begun in all."""

    step: int
    spent: int
    tensors: Mapping[str, Tensor]
    history: tuple[Mapping[str, float], ...] = ()


class RunFolder:
    """The state of one run; open it with ``RunFolder.begin`` or ``RunFolder.resume``."""

    def __init__(self, path: Path, fingerprint: Mapping[str, Any]) -> None:
        self.path = path
        self._fingerprint = dict(fingerprint)
        self._fd = -1
        self._synced = 0.0

    @classmethod
    def begin(cls, path: Path, fingerprint: Mapping[str, Any]) -> Self:
        """Make the folder; raises UsageFault where it exists."""
        if path.exists():
            raise UsageFault(f"{path} holds the state of an unfinished run; go on with --resume, or remove it")
        new_folder(path)
        write_bytes(path / _SETTINGS, json.dumps(dict(fingerprint), indent=1).encode())
        return cls(path, fingerprint)

    @classmethod
    def resume(cls, path: Path, fingerprint: Mapping[str, Any]) -> tuple[Self, Saved | None]:
        """Open the folder and read its state, None where none was saved yet.

        Raises UsageFault where there is no folder or the run had other settings, InputFault for a damaged state.
        """
        if not path.is_dir():
            raise UsageFault(f"{path} is not there, so there is no run to resume; leave --resume out")
        found = cls(path, fingerprint)
        found._compare(parse_json(read_text(path / _SETTINGS), str(path / _SETTINGS)))
        begun = found._read_begun()
        if not (path / _STATE).is_file():
            return found, Saved(step=0, spent=begun, tensors={}) if begun else None
        data = parse_json(read_text(path / _STATE), str(path / _STATE))
        try:
            step, spent, name = int(data["step"]), int(data["spent"]), data["tensors"]
            history = tuple(data["history"])
        except (KeyError, TypeError, ValueError):
            raise InputFault(f"{path / _STATE} is not the state of a run; remove {path} and start again") from None
        tensors = read_tensors(path / name)
        return found, Saved(step=step, spent=max(spent, begun), tensors=tensors, history=history)

    def _compare(self, kept: Any) -> None:
        """Raises UsageFault where the run was begun with other settings."""
        for key, value in self._fingerprint.items():
            before = kept.get(key) if isinstance(kept, dict) else None
            if before != json.loads(json.dumps(value)):
                raise UsageFault(
                    f"{self.path} was begun with {key} {before!r}, not {value!r}; resume with the same settings"
                )

    def mark(self, begun: int) -> None:
        """Note that ``begun`` steps have been begun, before anything of the last one is computed."""
        with writing(self.path):
            if self._fd < 0:
                self._fd = os.open(self.path / _BEGUN, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._lock()
            os.pwrite(self._fd, b"%020d\n" % begun, 0)
            if time.monotonic() - self._synced > _SYNC_EVERY:
                os.fdatasync(self._fd)
                self._synced = time.monotonic()

    def _lock(self) -> None:
        """Keep the run to this process: two that went on with it would each know the half of what was begun."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise UsageFault(f"another process goes on with the run in {self.path}; wait for it, or stop it") from None

    def save(self, saved: Saved) -> None:
        """Write the state; a kill at any moment leaves the old one or this one."""
        name = f"state-{saved.spent}.safetensors"
        write_tensors(self.path / name, saved.tensors, {})
        state = {
            "step": saved.step,
            "spent": saved.spent,
            "tensors": name,
            "history": list(saved.history),
        }
        write_bytes(self.path / _STATE, json.dumps(state, indent=1).encode())
        for old in self.path.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder: the run is finished and its result safe."""
        self._close()
        shutil.rmtree(self.path, ignore_errors=True)

    def _read_begun(self) -> int:
        try:
            return int((self.path / _BEGUN).read_bytes() or b"0")
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            raise InputFault(
                f"{self.path / _BEGUN} does not say how many steps were begun, so no ledger can be right; begin anew"
            ) from None

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close()
