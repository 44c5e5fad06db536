"""What a power cut leaves: of the logs, only what was synced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.saved_state import SavedState

if TYPE_CHECKING:
    import pytest

LOGS = ("begun", "measured")


def test_a_state_never_outlives_the_logs_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are logged many times a second, and synced once; the state names the last of them."""
    place, durable, sync, replace = tmp_path / "run", dict.fromkeys(LOGS, b""), os.fdatasync, os.replace
    seen: list[dict[str, bytes]] = []

    def synced(descriptor: int) -> None:
        sync(descriptor)
        for name in LOGS:
            if os.path.samestat(os.fstat(descriptor), (place / name).stat()):
                durable[name] = (place / name).read_bytes()

    def replaced(old: Any, new: Any, **more: Any) -> None:
        replace(old, new, **more)
        if Path(new).name == "state.json":
            seen.append(dict(durable))

    monkeypatch.setattr(os, "fdatasync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    with RunFolder.begin(place, {}) as folder:
        for step in range(1, 5):
            folder.mark(step)
            folder.mark_side_releases(step)
        folder.save(SavedState(updates=4, steps_begun=4, tensors={}, side_releases_begun=4))
    (left,) = seen
    for name in LOGS:
        (place / name).write_bytes(left[name])  # as the power cut leaves it
    _, saved = RunFolder.resume(place, {})
    assert saved is not None
    assert (saved.updates, saved.steps_begun, saved.side_releases_begun) == (4, 4, 4)
