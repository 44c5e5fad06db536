"""What ``ci/privctl`` installs: all of it or nothing, and never with the exit code of a policy that failed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from privctl.domain.errors import missing_package
from tests.gate.test_ci import launcher

#: Makes an environment that is a link to this program, and fails where it is told to. It waits for another that also
#: installs, so that both have seen that nothing is there.
_PYTHON = """#!/bin/sh
for last; do :; done
case "$*" in
  *"-m venv"*)
    [ "$FAILS" = venv ] && exit 1
    mkdir -p "$last/bin"
    cp "$0" "$last/bin/python"
    echo made >> "$MADE"
    while [ "$(wc -l < "$MADE")" -lt "$JOBS" ]; do sleep 0.05; done
    exit 0 ;;
  *"-m pip"*) [ "$FAILS" = pip ] && exit 1; exit 0 ;;
esac
exec {python} "$@"
"""


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    folder = launcher(root, tmp_path)
    shutil.rmtree(folder / ".environment")
    python = tmp_path / "python"
    python.write_text(_PYTHON.format(python=shlex.quote(sys.executable)))
    python.chmod(0o755)
    return folder


def start(folder: Path, *, fails: str = "", jobs: int = 1) -> subprocess.Popen[str]:
    above = folder.parent.parent
    more = {**os.environ, "PYTHON": str(above / "python"), "FAILS": fails, "JOBS": str(jobs), "MADE": str(above / "m")}
    return subprocess.Popen(
        [str(folder / "privctl"), "--version"],
        env=more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("fails", ["venv", "pip"])
def test_an_installation_that_fails_is_no_verdict(folder: Path, fails: str) -> None:
    shown, said = (done := start(folder, fails=fails)).communicate()
    assert (done.returncode, shown) == (4, ""), "1 would say that a policy failed"
    assert "could not be installed" in said
    assert not list(folder.glob(".environment*"))
    whole = start(folder)
    assert whole.communicate()[0].startswith("privctl, version")
    assert whole.returncode == 0


def test_two_jobs_that_install_at_once_both_run(folder: Path) -> None:
    running = [start(folder, jobs=2) for _ in range(2)]
    ended = [(process.communicate()[0][:16], process.returncode) for process in running]
    assert ended == [("privctl, version", 0)] * 2
    assert [path.name for path in folder.glob(".environment*")] == [".environment"]


def test_an_environment_without_its_python_is_made_again(folder: Path) -> None:
    assert start(folder).wait() == 0
    (folder / ".environment/bin/python").unlink()
    (folder.parent.parent / "m").unlink()
    assert start(folder).wait() == 0


@pytest.mark.parametrize(
    ("module", "package"), [("PIL.Image", "pillow"), ("flint", "python-flint"), ("scipy", "scipy")]
)
def test_a_package_is_named_as_it_is_installed(module: str, package: str) -> None:
    assert missing_package(ModuleNotFoundError(name=module)) == package
