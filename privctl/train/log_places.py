"""Where the logs of a training lie, and what they need."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from privctl.domain.errors import CommandError
from privctl.storage.atomic import require_absent
from privctl.train.choices import LogName
from privctl.train.request import RetrainRequest
from privctl.train.withheld import withholds

#: What must be installed for a log; csv needs nothing.
_LIBRARIES = {LogName.TENSORBOARD: "tensorboard", LogName.WANDB: "wandb", LogName.MLFLOW: "mlflow"}


def csv_path(output: Path) -> Path:
    """The file of ``--log csv``."""
    return output.with_name(f"{output.name}.log.csv")


def tensorboard_folder(output: Path) -> Path:
    """The folder of ``--log tensorboard``."""
    return output.with_name(f"{output.name}.tensorboard")


def require_logs(request: RetrainRequest) -> None:
    """Raise CommandError for a log whose library is absent, or whose place is taken, before any work."""
    for name in request.logs:
        library = _LIBRARIES.get(name)
        if library is not None and importlib.util.find_spec(library) is None:
            raise CommandError(
                f"--log {name} needs {library}, which is not installed; pip install 'privctl[{name}]', or {library}"
            )
    if LogName.CSV in request.logs:
        require_absent(csv_path(request.output), request.force or request.resume)
    folder = tensorboard_folder(request.output)
    if LogName.TENSORBOARD in request.logs and os.path.lexists(folder) and not (request.force or request.resume):
        raise CommandError(f"{folder} exists; give --force to begin its log anew, or choose another --output")


def sends_private(request: RetrainRequest) -> str | None:
    """A warning where exact measures of private examples leave this machine's folder."""
    services = [name for name in request.logs if name in (LogName.WANDB, LogName.MLFLOW)]
    if services and withholds(request) and request.show_unprotected:
        return (
            f"--show-unprotected sends exact losses of the private examples to {' and '.join(services)}; whoever reads "
            "them there learns what no guarantee covers"
        )
    return None
