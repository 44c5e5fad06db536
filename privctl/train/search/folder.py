"""The state of a private search on disk: what was drawn, which runs are done, and which of them is the best.

``search.json`` is written before the first run. The number of runs is drawn only once, as drawing it again because of
the runs' results would be a choice that the accounting does not cover.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from privctl.accounting import runs_law
from privctl.accounting.runs_law import NumberOfRuns
from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import PrivacyReport
from privctl.reports.files import commit_with_report, now, read_report, relative
from privctl.storage.atomic import PendingFolder, write_bytes, writing
from privctl.storage.digest import file_digest
from privctl.storage.journal import recover
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text
from privctl.storage.turns import LOCK, Claim
from privctl.train.preparation.places import begun_mark, report_path
from privctl.train.settings.method_settings import MethodSettings
from privctl.train.state.fingerprint import difference

_STATE = "search.json"


class SearchFolder:
    """The folder of a search, readable by its owner only; open it with ``begin`` or ``resume``.

    ``order`` holds the index of each run's candidate; ``done`` is the number of finished runs, ``best`` the index of
    the best of them. ``released`` holds the digests of the files of the model once its release has begun, None before.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        order: list[int],
        scores: list[float | None],
        released: list[str] | None = None,
        claim: Claim | None = None,
    ) -> None:
        self.path = path
        self._claim = claim
        self.order = order
        self.released = released
        self._facts = dict(facts)
        self._scores = scores

    @classmethod
    def begin(cls, path: Path, facts: Mapping[str, Any], runs: NumberOfRuns, candidates: int) -> Self:
        """Draw and write the number of runs and the candidate of each. Raises CommandError if ``path`` exists."""
        if os.path.lexists(path):
            raise CommandError(
                f"{path} holds an unfinished search; continue it with --resume, or remove it, but what its runs showed "
                "then costs privacy that no report counts"
            )
        count = runs_law.draw(runs.mean, runs.shape, secrets.randbits(runs_law.BITS))
        with PendingFolder(path) as pending:
            folder = cls(pending.temporary, facts, [secrets.randbelow(candidates) for _ in range(count)], [])
            folder._write()
            pending.commit()
        folder.path, folder._claim = path, _claim_search(path)
        return folder

    @classmethod
    def resume(
        cls, path: Path, facts: Mapping[str, Any], candidates: int, own: type[MethodSettings] = MethodSettings
    ) -> Self:
        """Read the state of a search; ``own`` is the method's settings class.

        Raises CommandError if there is none or it has other settings, InputError if it is damaged.
        """
        if not (path / _STATE).is_file():
            raise CommandError(f"{path} does not exist, so there is no search to resume; remove --resume")
        claim = _claim_search(path)
        try:
            return cls._read(path, facts, candidates, own, claim)
        except BaseException:
            claim.close()
            raise

    @classmethod
    def _read(
        cls, path: Path, facts: Mapping[str, Any], candidates: int, own: type[MethodSettings], claim: Claim
    ) -> Self:
        data = parse_json(read_text(path / _STATE), str(path / _STATE))
        damaged = InputError(f"{path / _STATE} is not the state of a search; put it back as it was")
        try:
            order, scores = [int(index) for index in data["order"]], list(data["scores"])
            kept, released = dict(data["facts"]), data.get("released")
            if len(scores) > len(order) or not all(score is None or isinstance(score, float) for score in scores):
                raise ValueError
            if released is not None and not isinstance(released, list):
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError):
            raise damaged from None
        if (changed := difference(kept, json.loads(json.dumps(dict(facts))), own)) is not None:
            raise CommandError(f"{path} was begun {changed}; resume with the same settings")
        if not all(0 <= index < candidates for index in order):
            raise damaged
        folder = cls(path, facts, order, scores, released, claim)
        folder._delete_losers()
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._claim is not None:
            self._claim.close()

    @property
    def data(self) -> str:
        """The digest of the training data."""
        return str(self._facts["data"]["train"])

    @property
    def done(self) -> int:
        """The number of finished runs."""
        return len(self._scores)

    @property
    def best(self) -> int | None:
        """The index of the first run with the smallest score; None if no run is finished."""
        scored = [math.inf if score is None else score for score in self._scores]
        return min(range(len(scored)), key=scored.__getitem__, default=None)

    @property
    def diverged(self) -> bool:
        """Whether all finished runs diverged or were lost."""
        return all(score is None for score in self._scores)

    def run(self, number: int) -> Path:
        """The folder of a run, which is made if it does not exist."""
        place = self.path / f"run-{number + 1}"
        with writing(place):
            place.mkdir(mode=0o700, exist_ok=True)
        return place

    def record(self, number: int, score: float) -> None:
        """Record the score of a finished run, infinite if it has no model, and delete the runs that lost."""
        assert number == self.done
        self._scores.append(score if math.isfinite(score) else None)
        self._write()
        self._delete_losers()

    def mark_release(self, report: PrivacyReport) -> None:
        """Record that the release of the model of ``report`` begins, in case the search is killed meanwhile."""
        self.released = sorted(file.digest for file in report.outputs)
        self._write()

    def remove(self) -> str | None:
        """Delete the folder, its state last. Returns a warning if some of it could not be deleted."""
        for number in range(len(self.order)):
            shutil.rmtree(self.path / f"run-{number + 1}", ignore_errors=True)
            begun_mark(self.path / f"run-{number + 1}" / "model").unlink(missing_ok=True)
        (self.path / _STATE).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        if not self.path.exists():
            return None
        return f"{self.path} could not be removed, and tells of runs that were not chosen; delete it yourself"

    def _delete_losers(self) -> None:
        for number in range(self.done):
            if number != self.best:
                shutil.rmtree(self.path / f"run-{number + 1}", ignore_errors=True)

    def _write(self) -> None:
        state: dict[str, Any] = {"facts": self._facts, "order": self.order, "scores": self._scores}
        if self.released is not None:
            state["released"] = self.released
        write_bytes(self.path / _STATE, json.dumps(state, indent=1).encode())


def discard_remains(path: Path) -> None:
    """Finish the removal of a search's folder that a kill interrupted. Any other folder is left as it is.

    The state is removed last, so a folder without it holds nothing else.
    """
    if path.is_dir() and not path.is_symlink() and {entry.name for entry in os.scandir(path)} <= {LOCK}:
        shutil.rmtree(path, ignore_errors=True)


def _claim_search(path: Path) -> Claim:
    """The claim of this process on the search, without which another could make its runs a second time."""
    with writing(path):
        return Claim(path, "search")


def released_report(output: Path, released: list[str] | None) -> PrivacyReport | None:
    """The report of ``output`` if its files have the digests ``released``, else None."""
    place = report_path(output)
    recover(place.parent)  # a kill may have come between renaming the model and its report
    if released is None or not place.is_file():
        return None
    report = read_report(place)
    files = [place.parent / file.path for file in report.outputs]
    if all(file.is_file() for file in files) and sorted(map(file_digest, files)) == released:
        return report
    return None


def move_model(
    model: Path, output: Path, *, force: bool, amend: Callable[[PrivacyReport], PrivacyReport]
) -> PrivacyReport:
    """Put the folder ``model`` and its report at ``output``, adapt the report's paths, and return the report.

    ``amend`` changes the report first. With ``force``, an existing ``output`` stays until the new one is complete.
    Report and files get the current time, as the time when the best run ended would reveal something of later runs.
    """
    old, place = report_path(model), report_path(output)
    report = read_report(old)
    inputs = tuple(replace(artifact, path=relative(old.parent / artifact.path, place)) for artifact in report.inputs)
    parents = tuple(replace(parent, path=relative(old.parent / parent.path, place)) for parent in report.parents)
    report = amend(replace(report, inputs=inputs, parents=parents, created=now()))
    with PendingFolder(output, public=True, replaces=force) as pending:
        for file in sorted(model.iterdir()):
            _linked(file, pending.temporary / file.name)
        commit_with_report([pending], place, report, replace=force)
    return report


def _linked(file: Path, place: Path) -> None:
    """Hard link ``file`` at ``place``, or copy it if the file system has no links, with the current time."""
    try:
        os.link(file, place)
    except OSError:
        with writing(place):
            shutil.copyfile(file, place)
            shutil.copymode(file, place)
            with open(place, "rb") as copy:
                os.fsync(copy.fileno())
    os.utime(place)
