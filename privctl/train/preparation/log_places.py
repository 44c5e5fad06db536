"""The places of a run's logs, and what they require."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from privctl.domain.errors import CommandError, PrivctlError
from privctl.storage.atomic import require_absent
from privctl.storage.reader import read_text
from privctl.train.preparation.places import run_folder
from privctl.train.settings.choices import LogName
from privctl.train.settings.request import RetrainRequest

#: The library that each log needs; csv needs none.
_LIBRARIES = {LogName.TENSORBOARD: "tensorboard", LogName.WANDB: "wandb", LogName.MLFLOW: "mlflow"}
#: The file in the run's folder with the state of its logs, and its key for the logs that were begun.
STATE, BEGUN = "logs.json", "begun"
CSV_HEADER = ("step", "measure", "value")


def csv_path(output: Path) -> Path:
    """The file of ``--log csv``."""
    return output.with_name(f"{output.name}.log.csv")


def tensorboard_folder(output: Path) -> Path:
    """The folder of ``--log tensorboard``."""
    return output.with_name(f"{output.name}.tensorboard")


def require_logs(request: RetrainRequest) -> None:
    """Raise CommandError for a log whose library is not installed or whose file or folder exists already."""
    for name in request.logs:
        library = _LIBRARIES.get(name)
        if library is not None and importlib.util.find_spec(library) is None:
            raise CommandError(
                f"--log {name} needs {library}, which is not installed; pip install 'privctl[{name}]', or {library}"
            )
    if LogName.CSV in request.logs:
        place = csv_path(request.output)
        require_absent(place, request.force or (request.resume and _is_own(place, request.output)))
    folder = tensorboard_folder(request.output)
    if LogName.TENSORBOARD in request.logs and os.path.lexists(folder) and not (request.force or request.resume):
        raise CommandError(f"{folder} exists; give --force to begin its log anew, or choose another --output")


def _is_own(log: Path, output: Path) -> bool:
    """Whether the CSV file ``log`` was begun by the interrupted run for ``output``."""
    kept = saved_log_state(run_folder(output))
    # Runs begun by privctl 0.1 only state that they logged.
    begun = LogName.CSV in kept[BEGUN] if isinstance(kept.get(BEGUN), list) else "logged" in kept
    try:
        with log.open("rb") as file:
            return begun and file.readline(99).rstrip() == ",".join(CSV_HEADER).encode()
    except OSError:
        return begun


def saved_log_state(folder: Path | None) -> dict[str, Any]:
    """The saved state of a run's logs; empty if it is missing or damaged, as no guarantee depends on logs."""
    if folder is None or not (folder / STATE).is_file():
        return {}
    try:
        state = json.loads(read_text(folder / STATE))
    except (ValueError, PrivctlError):
        return {}
    return state if isinstance(state, dict) else {}


def private_log_warning(request: RetrainRequest) -> str | None:
    """A warning if exact metrics of private examples are sent to a service, else None."""
    services = [name for name in request.logs if name in (LogName.WANDB, LogName.MLFLOW)]
    if services and request.method.private and request.show_unprotected:
        return (
            f"--show-unprotected sends exact losses of the private examples to {' and '.join(services)}; whoever reads "
            "them there learns what no guarantee covers"
        )
    return None
