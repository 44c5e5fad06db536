"""A set of outputs appears together: killed or failing at every rename, the old set stands or the new one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from privctl.domain.errors import IoFault, UsageFault
from privctl.storage.atomic import PendingFile, PendingFolder
from privctl.storage.commit import commit_together
from privctl.storage.journal import recover

#: Writes three files, and perhaps a folder, anew; the process dies just before the system call of the given number.
SET = """
import os, sys
from contextlib import ExitStack
from pathlib import Path
from privctl.storage import atomic, commit
folder, version, fatal, folders = Path(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3]), sys.argv[4] == "folders"
count = 0
def dying(call):
    def wrapped(*args, **kwargs):
        global count
        count += 1
        if count == fatal:
            os._exit(9)
        return call(*args, **kwargs)
    return wrapped
with ExitStack() as stack:
    pending = [stack.enter_context(atomic.PendingFile(folder / name)) for name in ("model", "report", "manifest")]
    for file in pending:
        file.write_at(0, version)
    if folders:
        made = stack.enter_context(atomic.PendingFolder(folder / "made"))
        (made.temporary / "x").write_bytes(version)
        pending.append(made)
    for name in ("rename", "replace", "link", "unlink", "fsync"):
        setattr(os, name, dying(getattr(os, name)))
    commit.commit_together(pending)
print(count)
"""


def written(root: Path, folder: Path, version: str, fatal: int = 0, folders: bool = False) -> tuple[int, str]:
    arguments = [str(folder), version, str(fatal), "folders" if folders else ""]
    done = subprocess.run(
        [sys.executable, "-c", SET, *arguments],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 9), done.stderr
    return done.returncode, done.stdout.strip()


def contents(folder: Path) -> dict[str, str]:
    return {p.name: (p / "x" if p.is_dir() else p).read_text() for p in sorted(folder.iterdir())}


@pytest.mark.parametrize("replaced", [True, False])
def test_a_kill_at_every_system_call_leaves_the_old_set_or_the_new_one(
    tmp_path: Path, root: Path, replaced: bool
) -> None:
    _, counted = written(root, new_folder(tmp_path / "whole", replaced), "new", folders=not replaced)
    calls = int(counted)
    assert calls > 12
    outcomes = []
    for fatal in range(1, calls + 1):
        folder = new_folder(tmp_path / str(fatal), replaced)
        code, _ = written(root, folder, "new", fatal, folders=not replaced)
        assert code == 9
        recover(folder)
        found = {name: text for name, text in contents(folder).items() if not name.startswith(".")}
        names = ("manifest", "model", "report") if replaced else ("made", "manifest", "model", "report")
        old = dict.fromkeys(names, "old") if replaced else {}
        assert found in (old, dict.fromkeys(names, "new")), (fatal, found)
        outcomes.append(found == old)
        if found != old:
            assert not any(".kept" in p.name or ".commit" in p.name for p in folder.iterdir())
    assert True in outcomes
    assert False in outcomes


def new_folder(folder: Path, filled: bool) -> Path:
    folder.mkdir()
    if filled:
        for name in ("model", "report", "manifest"):
            (folder / name).write_text("old")
    return folder


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("existed", [True, False])
def test_a_rename_that_fails_takes_back_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, existed: bool
) -> None:
    folder = new_folder(tmp_path / "f", existed)
    real, count = os.replace, 0

    def replace(*args: object, **kwargs: object) -> None:
        nonlocal count
        count += str(args[0]).endswith(".partial")
        if count == failing and str(args[0]).endswith(".partial"):
            raise OSError(5, "Input/output error")
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", replace)
    with ExitStack() as stack:
        pending = [stack.enter_context(PendingFile(folder / name)) for name in ("model", "report", "manifest")]
        for file in pending:
            file.write_at(0, b"new")
        with pytest.raises(IoFault, match="Input/output error"):
            commit_together(pending)
    assert contents(folder) == (dict.fromkeys(("manifest", "model", "report"), "old") if existed else {})


def test_what_came_to_exist_meanwhile_is_kept(tmp_path: Path) -> None:
    with PendingFile(tmp_path / "model") as model, PendingFile(tmp_path / "report") as report:
        (tmp_path / "report").write_text("another's")
        with pytest.raises(UsageFault, match="came to exist meanwhile"):
            commit_together([model, report], replace=False)
    assert contents(tmp_path) == {"report": "another's"}


def test_a_folder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "x").write_text("old")
    with (
        PendingFolder(tmp_path / "model") as model,
        PendingFile(tmp_path / "report") as report,
        pytest.raises(UsageFault, match="came to exist meanwhile"),
    ):
        commit_together([model, report])
    assert contents(tmp_path) == {"model": "old"}


def test_a_journal_that_names_foreign_files_is_not_carried_out(tmp_path: Path) -> None:
    """Planted in a folder, it must not move a file that privctl did not write for that place."""
    (tmp_path / "target").write_text("old")
    (tmp_path / "evil").write_text("evil")
    (tmp_path / ".privctl.0123456789ab.commit").write_text(
        '[{"temporary": "evil", "place": "target", "kept": ".target.0123456789ab.kept", "replaces": true}]'
    )
    recover(tmp_path)
    assert (tmp_path / "target").read_text() == "old"
    assert (tmp_path / "evil").read_text() == "evil"
