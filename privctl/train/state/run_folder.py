"""A run's state on disk: enough to continue after a kill, and a count of everything that may have been released.

The folder holds ``settings.json``, ``state.json``, the tensors that it names, and ``begun``: a log of all steps begun,
written before each of them. ``measured`` is the same log for side releases. The state records the end of both logs, so
that a log removed or truncated later is detected, and the digests of the files that belong to it. Random states are not
saved: a resumed run draws fresh numbers, except for batches that depend on earlier ones, whose secret key is kept in
``batches`` until the run is complete, and for correlated noise, which is in the state. Steps begun after the state was
saved stay in the ledger, because they may have been released.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from privctl.domain.errors import CommandError, FileSystemError, InputError, RunInterruptedError
from privctl.randomness import NoiseSource
from privctl.storage.atomic import PendingFolder, write_bytes
from privctl.storage.digest import file_digest
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text
from privctl.storage.turns import Claim
from privctl.train.network.tensors import mapped_tensors, write_tensors
from privctl.train.preparation.places import RELEASED, STATE, remove_state
from privctl.train.settings.method_settings import MethodSettings
from privctl.train.state.fingerprint import BESIDE, difference
from privctl.train.state.public_seed import SEED_FILE
from privctl.train.state.release_log import ReleaseLog
from privctl.train.steps.saved_state import SavedState

_SETTINGS, _STEPS_BEGUN, _SIDE_RELEASES_BEGUN = "settings.json", "begun", "measured"
_BATCH_KEY, _KEY_BYTES = "batches", 32
#: Key for the digests of the state's files by name: its tensors, and those of ``_KEPT`` that exist.
_DIGESTS, _KEPT = "digests", (_BATCH_KEY, SEED_FILE)


@contextmanager
def resumable() -> Iterator[None]:
    """Let an error of the file system say that what is saved can be resumed once that is mended."""
    try:
        yield
    except FileSystemError as fault:
        problem = str(fault).rpartition("; ")[0] or fault
        raise FileSystemError(f"{problem}; mend that, then continue with --resume and the same settings") from None


class RunFolder:
    """The state of one run; open it with ``RunFolder.begin`` or ``RunFolder.resume``."""

    def __init__(self, path: Path, fingerprint: Mapping[str, Any]) -> None:
        self.path = path
        self._fingerprint = dict(fingerprint)
        self._claim: Claim | None = None
        #: Whether a failure in the first step, before anything was released, leaves nothing to continue or account for.
        self.forgets_failed_start = False
        self._steps, self._side_releases = 0, 0
        settings = json.dumps(self._fingerprint, sort_keys=True).encode()
        self._steps_begun, self._side_releases_begun = (
            ReleaseLog(path / _STEPS_BEGUN, settings),
            ReleaseLog(path / _SIDE_RELEASES_BEGUN, settings),
        )

    @staticmethod
    def require_new(path: Path) -> None:
        """Raise CommandError if there is a folder already, which another process may be working in."""
        if path.exists():
            with suppress(OSError):
                Claim(path, "run").close()
            raise CommandError(f"{path} holds the state of an unfinished run; continue it with --resume, or remove it")

    @classmethod
    def begin(cls, path: Path, fingerprint: Mapping[str, Any]) -> Self:
        """Make the folder. Raises CommandError if it exists."""
        cls.require_new(path)
        with PendingFolder(path) as pending:
            write_bytes(pending.temporary / _SETTINGS, json.dumps(dict(fingerprint), indent=1).encode())
            for name in (_STEPS_BEGUN, _SIDE_RELEASES_BEGUN):
                write_bytes(pending.temporary / name, b"")
            pending.commit()
        return cls(path, fingerprint)

    @classmethod
    def resume(
        cls, path: Path, fingerprint: Mapping[str, Any], own: type[MethodSettings] = MethodSettings
    ) -> tuple[Self, SavedState | None]:
        """Open the folder and read its state, None if none was saved yet; ``own`` is the method's settings class.

        Raises CommandError if there is no folder or the run had other settings, InputError for a damaged state.
        """
        if not path.is_dir():
            raise CommandError(f"{path} does not exist, so there is no run to resume; remove --resume")
        kept = parse_json(read_text(path / _SETTINGS), str(path / _SETTINGS))
        cls(path, fingerprint)._compare(kept, own)
        (path / RELEASED).unlink(missing_ok=True)  # the released model was removed since
        folder = cls(path, kept)  # as written: 2 and 2.0 are equal settings, but give chains different roots
        if not (path / STATE).is_file():
            steps, side = folder._steps_begun.read(), folder._side_releases_begun.read()
            nothing = not steps and not side
            return folder, None if nothing else SavedState(
                updates=0, steps_begun=steps, tensors={}, side_releases_begun=side
            )
        data = parse_json(read_text(path / STATE), str(path / STATE))
        try:
            updates, steps_begun, name = int(data["step"]), int(data["spent"]), data["tensors"]
            history, side_releases_begun = tuple(data["history"]), int(data["measured"])
            heads = str(data["begun_log"]), str(data["measured_log"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path / STATE} is not the state of a run; remove {path} and start again") from None
        steps, side = folder._steps_begun.read(heads[0]), folder._side_releases_begun.read(heads[1])
        if Path(str(name)).name != name:
            raise InputError(f"{path / STATE} is not the state of a run; remove {path} and start again")
        tensors = mapped_tensors(path / name)
        return folder, SavedState(
            updates=updates,
            steps_begun=max(steps_begun, steps),
            tensors=tensors,
            history=history,
            side_releases_begun=max(side_releases_begun, side),
        )

    def require_as_saved(self) -> None:
        """Raise InputError if a file of the state is missing or has changed since it was saved.

        These are the tensors, the key of batches and the public seed. States of earlier versions have no digests.
        """
        if not (self.path / STATE).is_file():
            return
        data = parse_json(read_text(self.path / STATE), str(self.path / STATE))
        digests = data.get(_DIGESTS, {}) if isinstance(data, dict) else None
        if not isinstance(digests, dict):
            raise InputError(f"{self.path / STATE} is not the state of a run; remove {self.path} and start again")
        for name in {str(data.get("tensors")), *_KEPT} & digests.keys():
            place = self.path / name
            if not place.is_file() or file_digest(place) != digests[name]:
                what = "is not what was saved" if place.is_file() else "is missing"
                raise InputError(
                    f"{place} {what} with the run's state, so the run would not go on from where it was; put it back "
                    "as it was, or start again with another --output, and account for what this run may have released"
                )

    def _compare(self, kept: Any, own: type[MethodSettings]) -> None:
        """Raise CommandError if the run was begun with other settings."""
        changed = difference(kept if isinstance(kept, dict) else {}, json.loads(json.dumps(self._fingerprint)), own)
        if changed is not None:
            raise CommandError(f"{self.path} was begun {changed}; resume with the same settings")

    def keep(self, claim: Claim) -> None:
        """Hold ``claim`` on the folder until this object is closed."""
        self._claim = claim

    def require_data(self, digest: str, public: str | None = None) -> None:
        """Raise InputError if the digests of the private or the ``public`` data have changed since the run began."""
        begun = (self._fingerprint.get("data") or {}).get("train", digest)
        mixed = (self._fingerprint.get("public") or {}).get("data", public)
        if (begun, mixed) != (digest, public):
            raise InputError(
                "the data were changed since the run began, so that its report would name others than it was trained "
                "on; put them back as they were"
            )

    def require_beside(self, now: Sequence[str]) -> None:
        """Raise InputError if the files beside the initial weights are not ``now`` what they were as the run began."""
        if self._fingerprint.get(BESIDE, [*now]) != [*now]:
            raise InputError(
                "the configuration or tokenizer of MODEL was changed since the run began, so that its report would "
                "name others than it was trained with; put the files back as they were"
            )

    def mark(self, begun: int) -> None:
        """Record that ``begun`` steps have begun, before the last of them is computed."""
        with resumable():
            self._steps_begun.mark(begun)
        self._steps = begun

    def mark_side_releases(self, begun: int) -> None:
        """Record that ``begun`` side releases have begun, before the last of them is computed."""
        with resumable():
            self._side_releases_begun.mark(begun)
        self._side_releases = begun

    def batch_key(self) -> bytes:
        """The secret key with which the run draws batches that depend on earlier ones; made at the first call.

        Raises InputError if it is damaged, or missing after the first step: with another key, a record could take part
        more often than is accounted for.
        """
        place = self.path / _BATCH_KEY
        if not place.exists():
            if self._steps_begun.read():
                raise InputError(
                    f"{place}, the key of the run's batches, is missing; put it back, or remove {self.path} and start "
                    "again"
                )
            write_bytes(place, NoiseSource().key)
        key = place.read_bytes()
        if len(key) != _KEY_BYTES:
            raise InputError(f"{place} is not the key of a run's batches; remove {self.path} and start again")
        return key

    def save(self, saved: SavedState) -> None:
        """Write the state. A kill at any moment, or a full disk, leaves the old state or this one."""
        with resumable():
            self._save(saved)

    def _save(self, saved: SavedState) -> None:
        for log in (self._steps_begun, self._side_releases_begun):
            log.sync()  # a state whose logs a power cut has shortened could not be resumed
        name = f"state-{saved.steps_begun}.safetensors"
        write_tensors(self.path / name, saved.tensors, {})
        files = [name, *(file for file in _KEPT if (self.path / file).is_file())]
        state = {
            "step": saved.updates,
            "spent": saved.steps_begun,
            "tensors": name,
            "history": list(saved.history),
            "measured": saved.side_releases_begun,
            "begun_log": self._steps_begun.head,
            "measured_log": self._side_releases_begun.head,
            _DIGESTS: {file: file_digest(self.path / file) for file in files},
        }
        write_bytes(self.path / STATE, json.dumps(state, indent=1).encode())
        for old in self.path.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)

    def remove(self) -> str | None:
        """Delete the folder of a finished run. Returns a warning if some of it could not be deleted."""
        remove_state(self.path)
        self._close()
        if not self.path.exists():
            return None
        return f"{self.path} could not be removed, and may hold the run's secret noise and batches; delete it yourself"

    def _close(self) -> None:
        self._steps_begun.close()
        self._side_releases_begun.close()
        if self._claim is not None:
            self._claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        in_first_step = self._steps <= 1 and not self._side_releases and not (self.path / STATE).exists()
        failed = isinstance(error, Exception) and not isinstance(error, FileSystemError | RunInterruptedError)
        if failed and in_first_step and self.forgets_failed_start:
            remove_state(self.path)
        self._close()
        if isinstance(error, FileSystemError):  # also where a log or the trained model cannot be written
            with resumable():
                raise error
