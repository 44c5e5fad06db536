"""The paths of a run's results and of its state, and checks that they are free."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from privctl.domain.errors import CommandError
from privctl.reports.files import REPORT_SUFFIX, require_replaceable
from privctl.storage.atomic import require_absent
from privctl.storage.journal import recover
from privctl.train.settings.request import RetrainRequest

#: The file in the run's folder that marks that model and report are in place.
RELEASED = "released"
#: The file in the run's folder with the saved state; absent until the first save.
STATE = "state.json"


def report_path(output: Path) -> Path:
    """The report of the directory ``output``: next to it, under the same name."""
    return output.with_name(output.name + REPORT_SUFFIX)


def run_folder(output: Path) -> Path:
    """The folder with the state of an unfinished run for ``output``."""
    return output.with_name(output.name + ".run")


def begun_mark(output: Path) -> Path:
    """The empty file next to the folder of ``output`` that marks that this run of a search was begun."""
    return output.parent.with_name(output.parent.name + ".begun")


def remove_finished(output: Path) -> None:
    """Remove the state of a run for ``output`` that was killed after its model and report were in place."""
    folder = run_folder(output)
    recover(output.absolute().parent)
    if (folder / RELEASED).is_file() and output.is_dir() and report_path(output).is_file():
        remove_state(folder)


def remove_state(folder: Path) -> None:
    """Remove as much as possible of the run's ``folder``, and last the mark that the run is finished."""
    with suppress(OSError):
        for item in folder.iterdir():
            if item.name != RELEASED:
                item.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def private_path(output: Path) -> Path:
    """The private file for metrics that the report withholds."""
    return output.with_name(output.name + ".private-history.json")


def nothing_to_resume(folder: Path, output: Path) -> CommandError:
    """The error for resuming a run for ``output`` whose ``folder`` does not exist."""
    if output.is_dir() and report_path(output).is_file():
        return CommandError(
            f"{output} is finished, and {report_path(output).name} is its report, so there is no run to resume; remove "
            "--resume, and choose another --output or give --force to train again"
        )
    return CommandError(f"{folder} does not exist, so there is no run to resume; remove --resume")


def require_places(output: Path, *, force: bool, suffixes: Iterable[str] = (), inputs: Iterable[Path] = ()) -> None:
    """Raise CommandError if the model ``output``, its report, or a file next to them with a suffix, already exists.

    With ``force``, the results of an earlier run may be replaced, unless one of the ``inputs`` is among them.
    """
    require_replaceable(output, report_path(output), force, inputs=inputs)
    for suffix in (REPORT_SUFFIX, *suffixes):
        require_absent(output.with_name(output.name + suffix), force)


def require_private_file_absent(request: RetrainRequest) -> None:
    """Raise CommandError if the private file is requested and exists already."""
    if request.show_unprotected:
        require_absent(private_path(request.output), request.force)
