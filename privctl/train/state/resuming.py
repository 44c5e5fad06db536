"""Begins or resumes a run's folder in all processes together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from privctl.data.recorded import data_digest
from privctl.domain.errors import CommandError, InputError, NoStepsLeftError
from privctl.domain.progress import Notify
from privctl.domain.shown import counted
from privctl.parallel import Workers
from privctl.storage.atomic import write_bytes, writing
from privctl.storage.turns import Claim
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.places import begun_mark, require_places, run_folder
from privctl.train.state.fingerprint import difference, files_beside, files_of, fingerprint_of
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.saved_state import SavedState


def open_folder(
    job: TrainingJob, workers: Workers, files: Mapping[str, bytes] = MappingProxyType({})
) -> tuple[RunFolder | None, SavedState | None]:
    """The run's folder, to which ``files`` are written, and the saved state to continue from, if any.

    Only the main process writes; the others get None for the folder, but raise what it raises.
    """
    path = run_folder(job.request.output)

    def claimed() -> Claim | None:
        with writing(path):
            return Claim(path, "run") if path.is_dir() else None

    # Before the state is read, which another process that resumes the run would change.
    claim = workers.in_main(claimed) if job.request.resume else None
    try:
        settings_class = job.request.method.settings
        resumed = RunFolder.resume(path, fingerprint_of(job), settings_class) if job.request.resume else None
        if resumed is not None:
            workers.in_main(resumed[0].require_as_saved)  # reads the whole state, so only one process does it
        else:  # said before all files are read
            workers.in_main(lambda: RunFolder.require_new(path))
        workers.barrier()  # no process may change the state before all have read it
        begun = {} if resumed is not None else _common_fingerprint(job, workers)

        def opened() -> RunFolder:
            for weights in job.model.files:  # so that the fingerprint is that of the weights that were read
                weights.require_unchanged()
            folder = _begin(job, path, begun) if resumed is None else resumed[0]
            if (claim_held := claimed() if claim is None else claim) is not None:
                folder.keep(claim_held)
            for name, content in files.items():
                _require_own(folder.path / name, content)
                write_bytes(folder.path / name, content)
            if job.request.method.search(job.request) is not None:  # before its first step, so no run is made twice
                write_bytes(begun_mark(job.request.output), b"")
            else:
                folder.forgets_failed_start = resumed is None
            return folder

        return workers.in_main(opened), None if resumed is None else resumed[1]
    except BaseException:
        if claim is not None:
            claim.close()
        raise


def _begin(job: TrainingJob, path: Path, fingerprint: Mapping[str, Any]) -> RunFolder:
    """The new folder of a run. Raises CommandError, without one, if another process has finished the same output."""
    folder = RunFolder.begin(path, fingerprint)
    try:
        require_places(job.request.output, force=job.request.force)
    except CommandError:
        folder.remove()
        raise
    return folder


def _require_own(place: Path, content: bytes) -> None:
    """Raise InputError if the run's file ``place`` holds something else than was read from it before the claim."""
    if place.is_file() and place.read_bytes() != content:
        raise InputError(f"{place} is now that of another run, which began meanwhile; run the same command again")


def _common_fingerprint(job: TrainingJob, workers: Workers) -> dict[str, Any]:
    """The fingerprint of ``job``, the same in all processes; one process per machine reads the files.

    Raises InputError in all processes if one of them has other files or settings than the main process. It would add
    records that the report does not name, or a record for the second time, or clip them to another norm.
    """
    files = json.loads(workers.once_per_machine(lambda: json.dumps(files_of(job)).encode()))
    own = fingerprint_of(job, files)
    messages = workers.gather_messages(json.dumps(own).encode())
    for rank, message in enumerate(messages):
        if message != messages[0]:
            found = difference(json.loads(messages[0]), json.loads(message), job.request.method.settings)
            raise InputError(
                f"the main process was begun {found or 'with other settings'}, unlike process {rank}; give all "
                "processes the same options, and all machines the same files"
            )
    return own


def require_steps_left(start: SavedState | None, steps: int, notify: Notify) -> None:
    """Say which steps of a run of ``steps`` with noise were begun and not saved, as they are spent.

    Raises NoStepsLeftError if they are all of them, as nothing would be trained.
    """
    if start is None or start.steps_begun == start.updates:
        return
    if not start.updates and start.steps_begun >= steps:
        raise NoStepsLeftError(
            f"all {steps} steps of this run were begun before any was saved, so none is left to train with; start "
            "again with another --output, and account for what this run may have released"
        )
    lost = start.steps_begun - start.updates
    notify(
        f"{counted(lost, 'step was', 'steps were')} begun and not saved; "
        f"{'it counts in epsilon and is' if lost == 1 else 'they count in epsilon and are'} not made again, which "
        f"leaves {counted(steps - lost, 'update')} of {steps}"
    )


@contextmanager
def mention_saved_state(folder: RunFolder | None, job: TrainingJob) -> Iterator[None]:
    """If the trained model cannot be written, extend the error to say that the training is saved.

    Raises InputError on entry if the data of ``job``, or the files beside its initial weights, have changed since the
    run began, as the report would then name others than it was trained with.
    """
    try:
        if folder is not None:
            public = job.request.public
            mixed = None if public is None else data_digest(public.data)
            folder.require_data(data_digest(job.request.data.train), mixed)
            folder.require_beside(files_beside(job.request))
        yield
    except InputError as fault:
        if folder is None:
            raise
        raise InputError(f"{fault}; the training is saved in {folder.path}, so continue with --resume") from None
