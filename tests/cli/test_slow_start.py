"""On a terminal, imports that take long are named."""

from __future__ import annotations

import importlib
import io
import sys
import threading
from pathlib import Path

import pytest

from privctl.cli import slow_start
from privctl.cli.slow_start import being_imported, reporting_slow_imports


class Terminal(io.StringIO):
    """Sets ``said`` as soon as something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.said.set()


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error from here on; not in a fixture, after which pytest puts its own in place."""
    for name in ("CI", "TERM"):
        monkeypatch.delenv(name, raising=False)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a library whose import ends when something was said of it."""
    (tmp_path / "slow_engine.py").write_text("import sys\nsys.stderr.said.wait(60)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(slow_start, "_ENGINES", ("slow_engine",))
    monkeypatch.delitem(sys.modules, "slow_engine", raising=False)
    return "slow_engine"


def test_it_is_named_on_a_terminal(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    terminal = at_terminal(monkeypatch)
    with reporting_slow_imports([], after=0.01):
        importlib.import_module(engine)
    assert terminal.getvalue() == ("privctl: still importing slow_engine; that is quicker when it was used lately\n")
    assert being_imported() is None


@pytest.mark.parametrize("case", ["quiet", "CI", "no terminal"])
def test_nothing_is_said_elsewhere(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    terminal = at_terminal(monkeypatch)
    if case == "CI":
        monkeypatch.setenv("CI", "1")
    if case == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    before = threading.active_count()
    with reporting_slow_imports(["audit", "-q"] if case == "quiet" else ["audit"], after=3600):
        assert threading.active_count() == before


def test_work_that_is_no_import_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    slow_start._tell()
    assert terminal.getvalue() == ""
