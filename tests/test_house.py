"""The house rules of imports: who may import whom, and who may look at what."""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import read_report
from privctl.train import methods as train_methods
from tests.gate.made import PROVED, judged, making
from verify import checks
from verify import methods as verify_methods
from verify.run import verify

PACKAGES = ("privctl", "audits", "verify")

_BASE = {"domain", "reports", "storage", "accounting"}
#: Room -> rooms it may import. A room is a package or module directly under ``privctl``, or one of the other packages;
#: "privctl" itself is the package, which answers `privctl.gate(...)` and `privctl.noise(...)`. A new room needs a row
#: here.
MAY_IMPORT: dict[str, set[str]] = {
    "privctl": {"domain", "api", "integrations"},  # the last two by name, when they are asked for
    "domain": set(),
    "storage": {"domain"},
    "reports": {"domain", "storage"},
    "accounting": {"domain"},
    "machine_code": set(),
    "randomness": {"domain", "machine_code"},
    "parallel": {"domain"},
    "data": {"domain", "storage"},
    "models": {"domain", "storage", "data", "parallel", "machine_code"},
    "callable_package": set(),
    "noise": {"callable_package", *_BASE, "randomness", "models", "data"},
    "plan": {*_BASE},
    "secrets": {*_BASE, "data"},
    "train": {*_BASE, "machine_code", "randomness", "models", "parallel", "data", "secrets"},
    "audits": {"domain", "storage", "models", "parallel", "data", "reports", "secrets"},
    "shadow": {*_BASE, "models", "parallel", "data", "train", "audits"},
    # For training loops that are not privctl's: the engine of train, an audit of what they train, a report.
    "integrations": {*_BASE, "randomness", "train", "models", "data", "audits"},
    "gate": {"callable_package", "domain", "storage", "reports", "verify"},
    # Models and data are read as the training reads them; what they cost is verify's own to say.
    "verify": {"domain", "storage", "reports", "models", "data"},
    "show": {*_BASE, "plan"},
    "__main__": {"cli"},
}
#: Rooms on top, which may import everything but these.
_ON_TOP = {"cli": {"__main__"}, "demo": {"__main__", "cli"}, "api": {"__main__", "cli", "demo"}}

_TRAIN = "privctl.train"
#: A package -> its parts, rooms and modules, in an order in which each may import those before it: that of the data in
#: ``privctl.train``, and in ``verify`` from what checks are made of to what runs them. A new part needs a place here.
ORDERS: dict[str, tuple[str, ...]] = {
    _TRAIN: (
        "settings", "clipping", "directional", "quantized", "contribution", "network", "secrets",
        "preparation", "steps", "state", "logs", "release", "runs", "search", "methods", "run",
    ),
    "verify": (
        "answers", "compare", "laws", "texts", "losses", "events", "settings", "methods", "stated", "files",
        "recompute", "consistency", "audits", "warned", "checkpoint_noise", "weights",
        "guarantees", "checks", "run", "as_report", "simulate", "prove", "papers",
    ),
    "verify.audits": (
        "terms", "claim_sources", "recounted", "parts_not_run", "joint_test", "two_rates", "midpoint", "groups",
        "split", "ranks", "canaries", "secrets", "reach", "extraction", "figures", "given", "asked", "kept_request",
        "unscored", "evidence", "error_shares", "verdicts", "entries", "consistency",
    ),
}  # fmt: skip


def sources(root: Path, *folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (root / folder).rglob("*.py"))


def room_of(module: str) -> str | None:
    """The room of a dotted module name; None for one that is not ours."""
    first, *rest = module.split(".")
    if first == "privctl":
        return rest[0] if rest else "privctl"
    return first if first in PACKAGES else None


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Parsed(NamedTuple):
    """What the tests below look at in a file."""

    imports: list[ast.Import | ast.ImportFrom]
    strings: list[str]
    classes: list[str]


@functools.cache
def parsed(text: str) -> Parsed:
    """A file's parts, at its top or deeper; each file is parsed once for all tests."""
    found = Parsed([], [], [])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.append(node)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                found.strings.append(node.value)
        elif isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
    return found


def imported(text: str, path: Path) -> Iterator[tuple[int, str]]:
    """Every module imported anywhere in a file, at its top or inside a function, with the line."""
    package = path.with_suffix("").parts[:-1]
    for node in parsed(text).imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        else:
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            base = base if node.level else node.module or ""
            for alias in node.names:
                # ``from privctl import noise`` imports a room; ``from privctl.noise.facts import x`` a name in one.
                yield node.lineno, f"{base}.{alias.name}" if base == "privctl" and alias.name[0] != "_" else base


def breaches(path: Path, text: str) -> list[str]:
    """The imports of a file, given relative to the checkout, that its room may not make."""
    room = room_of(module_of(path))
    found = []
    for line, module in sorted(set(imported(text, path))):
        target = room_of(module)
        if target is None:
            top = module.split(".")[0]
            if room == "domain" and top not in sys.stdlib_module_names:
                found.append(f"{path}:{line}: domain imports {module}, which is not the standard library")
        elif target != room and not _allowed(room, target):
            found.append(f"{path}:{line}: {room} may not import {target}")
    return found


def _allowed(room: str | None, target: str) -> bool:
    if room in _ON_TOP:
        return target not in _ON_TOP[room]
    return target in MAY_IMPORT.get(room or "", set())


def test_imports_follow_the_design(root: Path) -> None:
    found = []
    for path in sources(root, *PACKAGES):
        found += breaches(path.relative_to(root), path.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


def test_every_room_is_known(root: Path) -> None:
    rooms = {room_of(module_of(path.relative_to(root))) for path in sources(root, *PACKAGES)}
    assert rooms <= MAY_IMPORT.keys() | _ON_TOP.keys()
    assert {"domain", "reports", "storage", "noise", "cli"} <= rooms


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("privctl/domain/x.py", "import numpy", "not the standard library"),
        ("privctl/domain/x.py", "from privctl.reports.codec import decode", "domain may not import reports"),
        ("privctl/domain/x.py", "from privctl import reports", "domain may not import reports"),
        ("privctl/domain/x.py", "from ..reports import codec", "domain may not import reports"),
        (
            "privctl/domain/x.py",
            "def f():\n    from privctl.storage import reader",
            ":2: domain may not import storage",
        ),
        ("privctl/storage/x.py", "import privctl.reports.codec", "storage may not import reports"),
        ("privctl/storage/x.py", "from privctl.noise import y", "storage may not import noise"),
        ("privctl/accounting/x.py", "import privctl.randomness", "accounting may not import randomness"),
        ("privctl/noise/x.py", "from privctl.train import y", "noise may not import train"),
        ("privctl/show/text/x.py", "from privctl.train import y", "show may not import train"),
        ("privctl/plan/x.py", "from privctl.show.plots import y", "plan may not import show"),
        ("privctl/demo/x.py", "from privctl.cli.noise import noise", "demo may not import cli"),
        ("privctl/models/x.py", "from privctl.cli import run", "models may not import cli"),
        ("audits/x.py", "from privctl.accounting import gaussian", "audits may not import accounting"),
        ("audits/x.py", "from privctl.train import loop", "audits may not import train"),
        ("privctl/shadow/x.py", "from privctl.accounting import y\nimport verify", "shadow may not import verify"),
        ("audits/x.py", "import verify", "audits may not import verify"),
        ("verify/x.py", "from privctl.accounting import gaussian", "verify may not import accounting"),
        ("verify/x.py", "from privctl.noise.weight_noise import y", "verify may not import noise"),
        ("verify/x.py", "import audits.loss", "verify may not import audits"),
        ("verify/methods/x.py", "from privctl.train.methods.dp_sgd import METHOD", "verify may not import train"),
        ("privctl/train/x.py", "from privctl.cli.options import force", "train may not import cli"),
        ("privctl/unheard_of.py", "from privctl.domain.errors import InputError", "unheard_of may not import domain"),
    ],
)
def test_a_planted_breach_is_noticed(path: str, text: str, fault: str) -> None:
    (found,) = breaches(Path(path), text)
    assert fault in found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("privctl/domain/x.py", "import math\nfrom privctl.domain.errors import InputError\nfrom . import errors"),
        (
            "privctl/cli/x.py",
            "import click\nfrom privctl.domain.version import VERSION\nimport audits.whole.run\nimport verify.x",
        ),
        ("verify/x.py", "import numpy\nfrom privctl.storage.reader import open_checkpoint\nfrom verify import y"),
        ("privctl/__main__.py", "from privctl.cli import main"),
    ],
)
def test_what_is_allowed_is_not_noticed(path: str, text: str) -> None:
    assert breaches(Path(path), text) == []


def part_of(package: str, module: str) -> str:
    """The part of ``package`` that a module is in; empty for any other module, and for the package itself."""
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else ""


def taken(text: str) -> set[str]:
    """What a file imports: modules, and what it takes from them, at its top, in functions and for types alone."""
    names = set()
    for node in parsed(text).imports:
        of_node = {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            names |= of_node
        elif node.module:
            names |= {node.module, *(f"{node.module}.{name}" for name in of_node)}
    return names


def named(text: str) -> set[str]:
    """What a file may import: what it does, and strings, as rows name what is imported later."""
    return taken(text) | {string.split(":")[0] for string in parsed(text).strings}


def upstream(package: str, path: Path, text: str) -> list[str]:
    """The imports of a file of ``package`` that go against the order of its parts."""
    part = part_of(package, module_of(path))
    places = {name: index for index, name in enumerate(("", *ORDERS[package]))}
    parts = {part, *(part_of(package, name) for name in named(text))}
    if unknown := parts - places.keys():
        return [f"{path}: {name} has no place in ORDERS" for name in sorted(unknown)]
    return [f"{path}: {part} may not import {name}" for name in sorted(parts) if places[name] > places[part]]


def circle(modules: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, if there is one; what a package takes of its own is none."""
    graph = {
        name: {each for each in imports & modules.keys() - {name} if not name.startswith(f"{each}.")}
        for name, imports in modules.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as found:
        return list(found.args[1])
    return []


@pytest.mark.parametrize("package", ORDERS)
def test_imports_go_one_way_through_a_package(root: Path, package: str) -> None:
    folder = package.replace(".", "/")
    files = {path.relative_to(root): path.read_text(encoding="utf-8") for path in sources(root, folder)}
    assert [fault for path, text in files.items() for fault in upstream(package, path, text)] == []
    assert {part_of(package, module_of(path)) for path in files} == {"", *ORDERS[package]}
    assert circle({module_of(path): named(text) for path, text in files.items()}) == []


@pytest.mark.parametrize(
    ("package", "path", "text", "fault"),
    [
        (_TRAIN, "steps/x.py", "from privctl.train.release.model import y", "steps may not import release"),
        (_TRAIN, "settings/x.py", "from privctl.train import methods", "settings may not import methods"),
        (_TRAIN, "state/x.py", "def f():\n    from privctl.train.runs.setup import y", "state may not import runs"),
        (_TRAIN, "runs/x.py", "ROW = 'privctl.train.methods.plain:METHOD'", "runs may not import methods"),
        (_TRAIN, "run.py", "from privctl.train.tricks import y", "tricks has no place"),
        (_TRAIN, "loose.py", "import math", "loose has no place"),
        ("verify", "events/x.py", "from verify.recompute import ledger", "events may not import recompute"),
        ("verify", "stated.py", "from verify.checks import findings", "stated may not import checks"),
        ("verify", "rank_bound.py", "import math", "rank_bound has no place"),
        ("verify.audits", "split/x.py", "from verify.audits.canaries.bounds import y", "split may not import canaries"),
        ("verify.audits", "reach.py", "from verify.audits import figures", "reach may not import figures"),
    ],
)
def test_an_import_against_the_order_is_noticed(package: str, path: str, text: str, fault: str) -> None:
    (found,) = upstream(package, Path(package.replace(".", "/")) / path, text)
    assert fault in found
    allowed = f"import torch\nfrom {package}.{ORDERS[package][0]} import x"
    assert upstream(package, Path(package.replace(".", "/")) / ORDERS[package][1] / "x.py", allowed) == []


def test_no_files_import_each_other_in_a_circle(root: Path) -> None:
    files = {path.relative_to(root): path.read_text(encoding="utf-8") for path in sources(root, *PACKAGES)}
    assert circle({module_of(path): taken(text) for path, text in files.items()}) == []


def test_a_circle_is_noticed() -> None:
    modules = {"a": {"a.b"}, "a.b": {"a", "a.c"}, "a.c": {"d"}}
    assert circle(modules) == []
    assert set(circle(modules | {"d": {"a.b"}})) == {"a.b", "a.c", "d"}
    files = {"a": "def f():\n    from b import g", "b": "if TYPE_CHECKING:\n    import a"}
    assert set(circle({name: taken(text) for name, text in files.items()})) == {"a", "b"}


#: What may be found wrong with a report without its weights. Only the list that gate and verify share may call these.
SHARED_CHECKS = {"contradictions", "gaps", "unknown_texts", "faults", "follows_and_floor", "ledger_file_verdicts",
                 "check_plan", "check_book", "unknown_parameters"}  # fmt: skip


def test_gate_and_verify_run_one_list_of_checks(root: Path) -> None:
    """A check that only one of them ran would be forgotten by the other."""
    found = {}
    for path in sources(root, "privctl/gate", "privctl/cli", "verify"):
        taken = parsed(path.read_text(encoding="utf-8")).imports
        own = (node for node in taken if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("verify."))
        found[path.relative_to(root).as_posix()] = {alias.name for node in own for alias in node.names}
    assert [name for name, names in found.items() if names & SHARED_CHECKS] == ["verify/checks.py"]
    assert found["verify/checks.py"] >= SHARED_CHECKS
    assert [name for name, names in found.items() if "findings" in names] == ["verify/run.py"]
    assert "recompute" in found["privctl/gate/checks/recomputed.py"]


def test_a_check_that_is_added_is_run_by_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def planted(path: Path, *args: object) -> Iterator[Verdict]:
        yield Verdict(subject=path.name, outcome=Outcome.REFUTED, reason="planted")

    monkeypatch.setattr(checks, "CHECKS", (*checks.CHECKS, planted))
    place = making(tmp_path / "m.report.json", PROVED)
    assert any(verdict.reason == "planted" for verdict in verify(place, read_report(place)).verdicts)
    findings = judged(place, max_epsilon="8", recompute="true").findings
    assert any("planted" in finding.message for finding in findings)


#: Who may look at parameters as they stand: what reads them, and what shows all of them as they are.
MAY_READ = {"privctl/reports/parameters.py", "privctl/show/html/words.py"}
REPORTS = {"report", "parent"}


def by_hand(text: str) -> list[int]:
    """Lines that look at a report's parameters as they stand, other than to copy all of them."""
    if ".parameters" not in text:
        return []  # most files need no look
    tree = ast.parse(text)
    copied = [n.values for n in ast.walk(tree) if isinstance(n, ast.Dict)]
    whole = {id(value) for values in copied for value in values}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "parameters"
        and ast.unparse(node.value).rsplit(".", 1)[-1] in REPORTS
        and id(node) not in whole
    ]


def test_parameters_of_reports_are_read_in_one_place(root: Path) -> None:
    """Elsewhere they are typed values: no entry is taken by its name, and none is misspelt."""
    found = {}
    for path in sources(root, *PACKAGES):
        if lines := by_hand(path.read_text(encoding="utf-8")):
            found[path.relative_to(root).as_posix()] = lines
    assert found.keys() == MAY_READ, found


@pytest.mark.parametrize(
    "text", ["report.parameters['delta']", "said = source.report.parameters", "f(parent.parameters.get('delta'))"]
)
def test_parameters_read_by_hand_are_noticed(text: str) -> None:
    assert by_hand(text) == [1]
    assert by_hand("x = {**report.parameters, 'a': 1}") == []


def test_verify_has_a_module_of_its_own_for_each_method() -> None:
    """A row may not lead to the trainer's code, which imports by name would hide from the table above."""
    assert verify_methods.METHODS.keys() == train_methods.METHODS.keys()
    assert {module.rpartition(".")[0] for module in verify_methods.METHODS.values()} == {"verify.methods"}
