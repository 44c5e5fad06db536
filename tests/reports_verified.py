"""Whatever a command of the tests writes as a report is verified as soon as the command is done.

A report counts when privctl itself put it in place (atomically, by a rename or a link) during a call of
``privctl.cli.run`` in this process. Reports that differ in what they were made from, or in the digits of their numbers
and not in their orders of magnitude, are verified once; with ``--every-report``, all are.
``@pytest.mark.forged("why")`` exempts a test that makes reports lie.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import privctl.cli
from privctl.domain.errors import ExitCode, PrivctlError
from tests import remembered, warned_rows

_SUFFIX = ".report.json"
#: Figures, and what hexadecimal digests are made of.
_NUMBERS = re.compile(r"\b[0-9a-f]{8,}\b|\d[\d.,e+-]*")
#: Entries that differ from run to run and change nothing about what is claimed.
_IDLE = ("created", "versions", "inputs", "outputs", "parents", "evidence", "omissions", "warnings", "log")

#: Modules that use what is remembered; nothing remembered reads what a test puts in their place.
_USERS = (
    *("privctl.train.runs.gradient_training", "privctl.train.logs.live", "privctl.train.steps.loop"),
    "privctl.train.methods.ferret.run",
    *("privctl.train.methods.dp_zo.trainer", "privctl.train.methods.ferret.trainer", "privctl.train.state.interrupts"),
    "privctl.api.training",
)


class Watch:
    """The reports put in place since the last look, and what was verified before."""

    def __init__(self) -> None:
        self.placed: list[Path] = []
        self.seen: set[str] = set()
        self.warnings: set[str] = set()
        self.outlines: set[str] = set()
        self.rows: set[warned_rows.Row] = set()
        self.every = False
        self.exempt = self.patched = False
        self.verified = self.skipped = 0
        self.depth = 0

    def note(self, path: str | bytes | os.PathLike[str]) -> None:
        """Something is written to ``path``; noted where that is a report's name."""
        if self.depth and (name := os.fsdecode(path)).endswith(_SUFFIX):
            self.placed.append(Path(name).absolute())

    def check(self) -> None:
        """Verify what was placed; AssertionError where a genuine report does not pass."""
        from privctl.show.text.verify import VerifiedRow, verify_text
        from verify.run import read, verify

        placed, self.placed = self.placed, []
        for path in dict.fromkeys(placed):
            if self.exempt or not path.is_file():
                continue
            self._called_for(path)
            if not self._new(path):
                self._warned(path)
                continue
            try:
                with nullcontext() if self.patched else remembered.bounds(remembered.FEW_DRAWS):
                    found = verify(path, read(path))
            except PrivctlError as error:
                raise AssertionError(f"privctl verify cannot read what privctl wrote: {error}") from error
            rows = [VerifiedRow(guarantee=j.guarantee, verdict=j.verdict) for j in found.guarantees]
            text = verify_text(found.integrity, rows, (), (), found.omissions)
            self.verified += 1
            assert found.exit_code is ExitCode.OK, f"privctl verify does not pass what privctl wrote, {path}:\n{text}"

    def _warned(self, path: Path) -> None:
        """Look at the warnings, if they are new, of a report that says the same as another in all else."""
        from privctl.reports.files import read_report
        from verify.warned.check import check_warnings

        report = json.loads(path.read_text(encoding="utf-8"))
        key = json.dumps([report["step"], _outline(report.get("warnings", []))])
        if report.get("warnings") and key not in self.warnings:
            self.warnings.add(key)
            wrong = [found.reason for found in check_warnings(path, read_report(path), ())]
            assert not wrong, f"privctl verify does not know the warnings of what privctl wrote, {path}: {wrong}"

    def _called_for(self, path: Path) -> None:
        """Leave out each warning of a kind that was not seen before: verify must miss it, or its row be listed."""
        from privctl.reports.files import read_report

        report = json.loads(path.read_text(encoding="utf-8"))
        key = json.dumps([report["step"], _outline(report.get("warnings", []))])
        if not report.get("warnings") or key in self.outlines:
            return
        self.outlines.add(key)
        wrong = list(warned_rows.faults(path, read_report(path), self.rows))
        assert not wrong, wrong

    def _new(self, path: Path) -> bool:
        data = json.loads(path.read_text(encoding="utf-8"))
        key = json.dumps(_outline({name: data[name] for name in data if name not in _IDLE}), sort_keys=True)
        if key in self.seen and not self.every:
            self.skipped += 1
            return False
        self.seen.add(key)
        return True


def _outline(entry: Any) -> Any:
    """What an entry says, with orders of magnitude for numbers; of a list, each kind of member once."""
    if isinstance(entry, dict):
        return {name: _outline(value) for name, value in entry.items()}
    if isinstance(entry, list):
        return sorted({json.dumps(_outline(value), sort_keys=True) for value in entry})
    if isinstance(entry, str):
        return _NUMBERS.sub("0", entry)
    if isinstance(entry, bool) or not isinstance(entry, int | float):
        return entry
    return math.copysign(math.frexp(max(-1e300, min(entry, 1e300)))[1] // 4, entry) if entry else 0


WATCH = Watch()


def _watched(run: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(run)
    def call(arguments: Sequence[str] | None = None) -> int:
        WATCH.depth += 1
        try:
            with ExitStack() as memories:
                if not WATCH.patched:
                    memories.enter_context(remembered.self_tests())
                    memories.enter_context(remembered.rehearsals())
                    memories.enter_context(remembered.epsilons())
                    memories.enter_context(remembered.trees(arguments))
                    memories.enter_context(remembered.bounds_if_loaded(remembered.FEW_DRAWS))
                code = run(arguments)
        finally:
            WATCH.depth -= 1
        if not WATCH.depth:
            WATCH.check()
        return code

    return call


def _noted(put: Callable[..., None]) -> Callable[..., None]:
    """One of the functions of ``os`` that put a file in a place. An audit hook would be called for much else."""

    @functools.wraps(put)
    def call(src: Any, dst: Any, **named: Any) -> None:
        WATCH.note(dst)
        put(src, dst, **named)

    return call


def _noticed(replace: Callable[..., None]) -> Callable[..., None]:
    """A method of ``MonkeyPatch`` after which nothing is answered from memory until the test ends."""

    @functools.wraps(replace)
    def call(patch: pytest.MonkeyPatch, target: Any, *args: Any, **named: Any) -> None:
        if target is not os.environ and _owner(target) not in _USERS:
            WATCH.patched = True
            remembered.forget()
        replace(patch, target, *args, **named)

    return call


def _owner(target: Any) -> str | None:
    """The name of a module, or of that in which a class stands."""
    return target.__name__ if isinstance(target, ModuleType) else getattr(target, "__module__", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-report", action="store_true", help="Verify every report that a command writes.")


def pytest_configure(config: pytest.Config) -> None:
    WATCH.every = bool(config.getoption("--every-report"))
    if not hasattr(privctl.cli.run, "__wrapped__"):
        for name in ("rename", "replace", "link"):
            setattr(os, name, _noted(getattr(os, name)))
        privctl.cli.run = _watched(privctl.cli.run)
        for name in ("setattr", "delattr", "setitem", "delitem"):
            setattr(pytest.MonkeyPatch, name, _noticed(getattr(pytest.MonkeyPatch, name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    WATCH.exempt = item.get_closest_marker("forged") is not None
    WATCH.patched = False
    try:
        return (yield)
    finally:
        if WATCH.patched:
            remembered.forget()
        WATCH.exempt, WATCH.patched, WATCH.placed = False, False, []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if WATCH.verified:
        terminalreporter.write_line(
            f"{WATCH.verified} reports that commands wrote were verified; {WATCH.skipped} more say the same"
        )
