"""Where the results of a run lie, and what may be in their way."""

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

#: In the folder of a run, there once its model and report have their names.
RELEASED = "released"
#: In the folder of a run, there once a state to go on from was saved.
STATE = "state.json"


def report_path(output: Path) -> Path:
    """The report of the directory ``output``: beside it, under the same name."""
    return output.with_name(output.name + REPORT_SUFFIX)


def run_folder(output: Path) -> Path:
    """The folder with the state of an unfinished run for ``output``."""
    return output.with_name(output.name + ".run")


def begun_mark(output: Path) -> Path:
    """The empty file that says that the run of a search which makes ``output`` was begun, beside its folder."""
    return output.parent.with_name(output.parent.name + ".begun")


def remove_finished(output: Path) -> None:
    """Remove the state of a run for ``output`` that was killed after its model and report got their names."""
    folder = run_folder(output)
    recover(output.absolute().parent)
    if (folder / RELEASED).is_file() and output.is_dir() and report_path(output).is_file():
        remove_state(folder)


def remove_state(folder: Path) -> None:
    """Remove as much as can be of the run's ``folder``, and last what says that the run is finished."""
    with suppress(OSError):
        for each in folder.iterdir():
            if each.name != RELEASED:
                each.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def private_path(output: Path) -> Path:
    """The private file for measures that the report withholds."""
    return output.with_name(output.name + ".private-history.json")


def nothing_to_resume(folder: Path, output: Path) -> CommandError:
    """The error where the state of a run for ``output`` is asked for, and ``folder`` is not there."""
    if output.is_dir() and report_path(output).is_file():
        return CommandError(
            f"{output} is finished, and {report_path(output).name} is its report, so there is no run to resume; remove "
            "--resume, and choose another --output or give --force to train again"
        )
    return CommandError(f"{folder} does not exist, so there is no run to resume; remove --resume")


def require_places(output: Path, *, force: bool, suffixes: Iterable[str] = (), inputs: Iterable[Path] = ()) -> None:
    """Raise CommandError where something is in the way of a model at ``output``, its report, or a file beside them.

    The files beside it end in ``suffixes``. With ``force`` those of an earlier run may be replaced, unless an input is
    among them.
    """
    require_replaceable(output, report_path(output), force, inputs=inputs)
    for suffix in (REPORT_SUFFIX, *suffixes):
        require_absent(output.with_name(output.name + suffix), force)


def require_writable_outputs(request: RetrainRequest) -> None:
    """Raise CommandError where the private file is asked for and something is in its place."""
    if request.show_unprotected:
        require_absent(private_path(request.output), request.force)
