"""Logs of begun steps, read and added to from outside a run."""

from __future__ import annotations

import json
from pathlib import Path

from privctl.train.state.release_log import ReleaseLog


def begun(path: Path) -> int:
    """The last count in the log at ``path``; 0 where there is none yet."""
    lines = path.read_text().splitlines() if path.exists() else []
    return int(lines[-1].split()[0]) if lines else 0


def pretend(path: Path, count: int) -> None:
    """Log that ``count`` were begun, as the run itself would."""
    settings = json.loads((path.parent / "settings.json").read_text())
    log = ReleaseLog(path, json.dumps(settings, sort_keys=True).encode())
    log.mark(count)
    log.close()
