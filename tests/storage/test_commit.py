"""A set of outputs appears together: killed or failing at every rename, the old set stands or the new one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from privctl.domain.errors import CommandError, FileSystemError
from privctl.storage.atomic import PendingFile, PendingFolder
from privctl.storage.commit import commit_together
from privctl.storage.journal import Journal, Rename, recover
from tests.few import few

#: A process that dies just before the system call of the given number, once for each of the calls on its input. It
#: holds little, so that a fork of it costs little.
DYING = """
import errno, fcntl, json, os, sys
from contextlib import ExitStack
from pathlib import Path
from privctl.storage import atomic, commit

def a_set(stack, folder, version, folders):
    pending = [stack.enter_context(atomic.PendingFile(folder / name)) for name in ("model", "report", "manifest")]
    for file in pending:
        file.write_at(0, version.encode())
    if folders:
        made = stack.enter_context(atomic.PendingFolder(folder / "made", replaces=(folder / "made").exists()))
        (made.temporary / "x").write_bytes(version.encode())
        pending.append(made)
    return pending, []

def apart(stack, folder, version, folders):
    pending = [stack.enter_context(atomic.PendingFile(folder / name)) for name in ("a/plot", "link/report")]
    for file in pending:
        file.write_at(0, version.encode())
    return pending, [folder / "b" / "book"]

def bare(stack, folder, version, folders):
    # On a file system with neither hard links nor locks.
    os.link, fcntl.flock = refused(errno.EPERM), refused(errno.ENOLCK)
    return a_set(stack, folder, version, folders)

def refused(number):
    def call(*arguments):
        raise OSError(number, os.strerror(number))
    return call

def run(make, folder, version, folders, fatal, told):
    count = 0
    def dying(call):
        def wrapped(*args, **kwargs):
            nonlocal count
            count += 1
            if count == fatal:
                os._exit(9)
            return call(*args, **kwargs)
        return wrapped
    with ExitStack() as stack:
        pending, remove = make(stack, Path(folder), version, folders)
        for name in ("rename", "replace", "link", "unlink", "fsync"):
            setattr(os, name, dying(getattr(os, name)))
        commit.commit_together(pending, remove=remove)
    os.write(told, str(count).encode())
    os._exit(0)

for line in sys.stdin:
    make, *call = json.loads(line)
    read, told = os.pipe()
    child = os.fork()
    if not child:
        run({"a set": a_set, "apart": apart, "bare": bare}[make], *call, told)
    os.close(told)
    with os.fdopen(read) as stream:
        counted = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([code, int(counted or 0)]), flush=True)
"""

#: What to write, in which folder, the text, with a folder too or not, and the fatal call: the exit code and the number
#: of system calls.
Write = Callable[[str, Path, str, bool, int], tuple[int, int]]


@pytest.fixture(scope="module")
def write(root: Path) -> Iterator[Write]:
    """Writes a set of files anew in a process of its own."""
    server = subprocess.Popen(
        [sys.executable, "-c", DYING],
        env={**os.environ, "PYTHONPATH": str(root)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    asked, answers = server.stdin, server.stdout

    def call(make: str, folder: Path, version: str, folders: bool, fatal: int) -> tuple[int, int]:
        print(json.dumps([make, str(folder), version, folders, fatal]), file=asked, flush=True)
        code, count = json.loads(answers.readline())
        assert code in (0, 9)
        return code, count

    yield call
    server.communicate()
    assert server.returncode == 0


def contents(folder: Path) -> dict[str, str]:
    return {p.name: (p / "x" if p.is_dir() else p).read_text() for p in sorted(folder.iterdir())}


KINDS = [("a set", True, False), ("a set", False, True), ("a set", True, True), ("bare", True, True)]


@pytest.mark.parametrize(("kind", "replaced", "folders"), few(KINDS, 1, 2, 3))
def test_a_kill_at_every_system_call_leaves_the_old_set_or_the_new_one(
    tmp_path: Path, write: Write, kind: str, replaced: bool, folders: bool
) -> None:
    code, calls = write(kind, new_folder(tmp_path / "whole", replaced, folders), "new", folders, 0)
    assert code == 0
    assert calls > 12
    outcomes = []
    for fatal in range(1, calls + 1):
        folder = new_folder(tmp_path / str(fatal), replaced, folders)
        code, _ = write(kind, folder, "new", folders, fatal)
        assert code == 9
        recover(folder)
        found = {name: text for name, text in contents(folder).items() if not name.startswith(".")}
        names = ("made", "manifest", "model", "report") if folders else ("manifest", "model", "report")
        old = dict.fromkeys(names, "old") if replaced else {}
        assert found in (old, dict.fromkeys(names, "new")), (fatal, found)
        outcomes.append(found == old)
        if found != old:
            assert not any(".kept" in p.name or ".commit" in p.name for p in folder.iterdir())
        if replaced:
            again, _ = write(kind, folder, "again", folders, 0)
            found = {name: text for name, text in contents(folder).items() if not name.endswith(".draft")}
            assert (again, found) == (0, dict.fromkeys(names, "again")), fatal
    assert True in outcomes
    assert False in outcomes


def new_folder(folder: Path, filled: bool, folders: bool = False) -> Path:
    folder.mkdir()
    if filled:
        for name in ("model", "report", "manifest"):
            (folder / name).write_text("old")
        if folders:
            (folder / "made").mkdir()
            (folder / "made" / "x").write_text("old")
    return folder


def test_a_folder_is_replaced_only_where_that_was_asked_for_and_comes_back_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_folder(tmp_path / "f", True, folders=True)
    with PendingFolder(folder / "made") as pending, pytest.raises(CommandError, match="was kept"):
        commit_together([pending])
    real = os.replace

    def replace(*args: object, **kwargs: object) -> None:
        if str(args[0]).endswith(".partial"):
            raise OSError(5, "Input/output error")
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", replace)
    with PendingFolder(folder / "made", replaces=True) as pending, PendingFile(folder / "model") as model:
        (pending.temporary / "x").write_text("new")
        with pytest.raises(FileSystemError, match="Input/output error"):
            commit_together([pending, model])
    assert contents(folder) == dict.fromkeys(("made", "manifest", "model", "report"), "old")


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
        with pytest.raises(FileSystemError, match="Input/output error"):
            commit_together(pending)
    assert contents(folder) == (dict.fromkeys(("manifest", "model", "report"), "old") if existed else {})


def test_what_came_to_exist_meanwhile_is_kept(tmp_path: Path) -> None:
    with PendingFile(tmp_path / "model") as model, PendingFile(tmp_path / "report") as report:
        (tmp_path / "report").write_text("another's")
        with pytest.raises(CommandError, match="was created meanwhile"):
            commit_together([model, report], replace=False)
    assert contents(tmp_path) == {"report": "another's"}


def test_a_folder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "x").write_text("old")
    with (
        PendingFolder(tmp_path / "model") as model,
        PendingFile(tmp_path / "report") as report,
        pytest.raises(CommandError, match="was created meanwhile"),
    ):
        commit_together([model, report])
    assert contents(tmp_path) == {"model": "old"}


def test_a_set_in_two_folders_is_finished_from_either(tmp_path: Path, write: Write) -> None:
    """Files in two folders, one of them reached through a link, and one that is removed."""

    def make_folders(name: str) -> Path:
        folder = tmp_path / name / "deep"
        for place in ("a/plot", "b/report", "b/book"):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text("old")
        (tmp_path / name / "b").symlink_to("deep/b")
        (folder / "link").symlink_to(tmp_path / name / "b")
        return folder

    outcomes = []
    code, calls = write("apart", make_folders("whole"), "new", False, 0)
    assert code == 0
    for fatal in range(1, calls + 1):
        for start in "ab":
            folder = make_folders(f"{fatal}{start}")
            assert write("apart", folder, "new", False, fatal)[0] == 9
            recover(folder / start)
            found = {f"{place}/{name}": text for place in "ab" for name, text in contents(folder / place).items()}
            files = {name: text for name, text in found.items() if "/." not in name}
            old = {"a/plot": "old", "b/book": "old", "b/report": "old"}
            assert files in (old, {"a/plot": "new", "b/report": "new"}), (fatal, start, found)
            outcomes.append(files == old)
            if files != old:
                recover(folder / "b")  # a kill between the end of the journal and that of its note leaves the note
                assert not [p for place in "ab" for p in (folder / place).glob(".privctl.*")]
    assert outcomes.count(True) > 4
    assert outcomes.count(False) > 4


# Journals that others planted: a model's folder may come from anywhere.

MARK = "0123456789ab"


def planted(folder: Path, kind: str, *rows: dict[str, object]) -> Path:
    folder.mkdir(exist_ok=True)
    journal = folder / f".privctl.{MARK}.{kind}"
    journal.write_text(json.dumps(rows))
    return journal


def row(place: str, **more: object) -> dict[str, object]:
    folder, name = os.path.split(place)
    hidden = os.path.join(folder, f".{name}.{MARK}.")
    return {"temporary": hidden + "partial", "place": place, "kept": hidden + "kept", "replaces": False, **more}


@pytest.mark.parametrize("kind", ["commit", "undo"])
@pytest.mark.parametrize("more", [{}, {"replaces": True}, {"removes": True}])
def test_a_planted_journal_reaches_no_other_folder(tmp_path: Path, kind: str, more: dict[str, object]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("years of work")
    (tmp_path / "download").mkdir()
    (tmp_path / "download" / "up").symlink_to("../mine")
    places = ("../mine", "../mine/thesis", "up/thesis", str(tmp_path / "mine"), str(tmp_path / "mine" / "thesis"))
    planted(tmp_path / "download", kind, *(row(place, **more) for place in places))
    for file in (".thesis.0123456789ab.partial", ".thesis.0123456789ab.kept"):
        (tmp_path / "mine" / file).write_text("evil")  # even where the names were there
    recover(tmp_path / "download")
    assert (tmp_path / "mine" / "thesis").read_text() == "years of work"
    assert len(list((tmp_path / "mine").iterdir())) == 3
    assert [p.name for p in (tmp_path / "download").iterdir()] == ["up"], "it is forgotten"


@pytest.mark.parametrize("kind", ["commit", "undo"])
def test_a_planted_journal_deletes_nothing_in_its_own_folder(tmp_path: Path, kind: str) -> None:
    for name in ("notes", "book"):
        (tmp_path / name).write_text(name)
    planted(tmp_path, kind, row("notes"), row("book", removes=True))
    recover(tmp_path)
    assert sorted(contents(tmp_path).values()) == ["book", "notes"]


@pytest.mark.parametrize(
    "text",
    ["", "[", "0", '"x"', "[[]]", "[0]", '[{"place": 1}]', "[" * 100_000, '{"home": 3}', '{"home": "\\u0000"}', "{}"],
)
def test_a_planted_journal_that_is_none(tmp_path: Path, text: str) -> None:
    planted(tmp_path, "commit").write_text(text)
    recover(tmp_path)
    planted(tmp_path, "undo", row("a\0b"), row("a\0b", removes=True))
    recover(tmp_path)


def test_what_is_called_a_journal_and_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f".privctl.{MARK}.commit")
    recover(tmp_path)


def test_two_notes_that_lead_to_each_other(tmp_path: Path) -> None:
    for here, there in (("a", "b"), ("b", "a")):
        planted(tmp_path / here, "commit").write_text(json.dumps({"home": f"../{there}"}))
    recover(tmp_path / "a")


def test_a_living_writer_is_left_alone_in_both_folders(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    temporary = tmp_path / "b" / f".x.{MARK}.partial"
    temporary.write_text("new")
    renames = [Rename.to_place(p / temporary.name, p / "x", MARK) for p in (tmp_path / "a", tmp_path / "b")]
    journal = Journal(MARK, renames)
    recover(tmp_path / "b")
    recover(tmp_path / "a")
    assert temporary.exists()
    journal.close()
    assert [p.name for p in tmp_path.rglob(".privctl*")] == []


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


def test_half_a_journal_is_none(tmp_path: Path) -> None:
    """A disk that is almost full takes the first bytes; a kill would leave a set that nobody could finish."""
    (tmp_path / "text").write_text("old")
    limited = """
import resource, signal, sys
from contextlib import ExitStack
from pathlib import Path
from privctl.domain.errors import FileSystemError
from privctl.storage import atomic, commit

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
with ExitStack() as stack:
    files = [stack.enter_context(atomic.PendingFile(Path(sys.argv[1]) / name)) for name in ("text", "model", "report")]
    for file in files:
        file.write_at(0, b"new")
    try:
        commit.commit_together(files)
    except FileSystemError as fault:
        print(fault)
"""
    done = subprocess.run(
        [sys.executable, "-c", limited, tmp_path], capture_output=True, text=True, check=True, env=os.environ
    )
    assert "does not fit: File too large" in done.stdout
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"text": "old"}
