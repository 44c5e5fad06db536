"""A run's folder, begun or continued by all processes of a training together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from privctl.data.recorded import data_digest
from privctl.domain.errors import InputError
from privctl.parallel import Workers
from privctl.storage.atomic import write_bytes, writing
from privctl.storage.turns import Claim
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.places import begun_mark, run_folder
from privctl.train.state.fingerprint import fingerprint_of
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.saved_state import SavedState


def open_folder(
    job: TrainingJob, workers: Workers, files: Mapping[str, bytes] = MappingProxyType({})
) -> tuple[RunFolder | None, SavedState | None]:
    """The run's folder, with ``files`` by name in it, and the state to continue from.

    Only the main process writes; the others get no folder, but raise what it raises.
    """
    path = run_folder(job.request.output)

    def claimed() -> Claim | None:
        with writing(path):
            return Claim(path, "run") if path.is_dir() else None

    # Before the state is read, which a process that goes on would change.
    claim = workers.in_main(claimed) if job.request.resume else None
    try:
        own = job.request.method.settings
        resumed = RunFolder.resume(path, fingerprint_of(job), own) if job.request.resume else None
        if resumed is not None:
            workers.in_main(resumed[0].require_as_saved)  # reads all of the state: once is enough
        workers.barrier()  # no process may change the state before all have read it

        def opened() -> RunFolder:
            begun = fingerprint_of(job) if resumed is None else {}
            for weights in job.model.files:  # those that were read are those of the fingerprint
                weights.require_unchanged()
            folder = RunFolder.begin(path, begun) if resumed is None else resumed[0]
            if (held := claimed() if claim is None else claim) is not None:
                folder.keep(held)
            for name, content in files.items():
                write_bytes(folder.path / name, content)
            if job.request.method.search(job.request) is not None:  # before its first step: no run is made twice
                write_bytes(begun_mark(job.request.output), b"")
            return folder

        return workers.in_main(opened), None if resumed is None else resumed[1]
    except BaseException:
        if claim is not None:
            claim.close()
        raise


@contextmanager
def mention_saved_state(folder: RunFolder | None, job: TrainingJob) -> Iterator[None]:
    """If the trained model cannot be written, extend the error to say that the training is saved.

    Raises InputError, before anything is done inside, where the data of ``job`` are not those that the run began with:
    its report would name others than it was trained on.
    """
    try:
        if folder is not None:
            public = job.request.public
            mixed = None if public is None else data_digest(public.data)
            folder.require_data(data_digest(job.request.data.train), mixed)
        yield
    except InputError as fault:
        if folder is None:
            raise
        raise InputError(f"{fault}; the training is saved in {folder.path}, so continue with --resume") from None
