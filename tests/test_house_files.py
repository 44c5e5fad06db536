"""The house rules of files: none so long that it holds two things, none so short that it holds nothing of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests import conftest
from tests.test_house import PACKAGES, module_of, named, parsed, sources

LINE_LIMIT = 400


def test_no_file_is_too_long(root: Path) -> None:
    lengths = {
        path.relative_to(root): len(path.read_text(encoding="utf-8").splitlines())
        for path in sources(root, *PACKAGES, "tests", "examples")
    }
    assert len(lengths) > 30
    assert {str(path): lines for path, lines in lengths.items() if lines > LINE_LIMIT} == {}


def test_tests_hold_no_packages_that_shadow_the_real_ones(root: Path) -> None:
    assert not list((root / "tests").rglob("__init__.py"))


def classes(text: str) -> list[str]:
    """The names of all classes that a file defines."""
    return parsed(text).classes


def twice(files: dict[str, str]) -> dict[str, list[str]]:
    """Class names with the files that define them, where these are several."""
    found: dict[str, list[str]] = {}
    for path, text in files.items():
        for name in classes(text):
            found.setdefault(name, []).append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_no_class_name_stands_twice(root: Path) -> None:
    files = {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in sources(root, *PACKAGES)}
    assert twice(files) == {}


def test_a_class_name_that_stands_twice_is_noticed() -> None:
    assert twice({"a.py": "class Plan: ...", "b.py": "def f():\n    class Plan: ..."}) == {"Plan": ["a.py", "b.py"]}


def doors(modules: dict[str, tuple[int, set[str]]], shortest: int = 60) -> list[str]:
    """Modules shorter than ``shortest`` lines whose only importer is another module of the same folder.

    ``modules`` gives each module's lines and the modules it imports. A package's own ``__init__`` is its table, and
    what a table lists may be short; so may a command, which has one file of its own.
    """
    users: dict[str, set[str]] = {name: set() for name in modules}
    for name, (_, targets) in modules.items():
        for target in targets & modules.keys() - {name}:
            users[target].add(name)
    return [
        name
        for name, (lines, _) in modules.items()
        if lines < shortest
        and len(users[name]) == 1
        and min(users[name]).rpartition(".")[0] == name.rpartition(".")[0] != "privctl.cli"
        and min(users[name]) not in _packages(modules)
    ]


def _packages(modules: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[0] for name in modules}


def test_no_short_module_serves_one_sibling(root: Path) -> None:
    modules = {}
    for path in sources(root, *PACKAGES):
        text = path.read_text(encoding="utf-8")
        modules[module_of(path.relative_to(root))] = (len(text.splitlines()), named(text))
    assert len(modules) > 300
    assert doors(modules) == []


def test_a_short_module_for_one_sibling_is_noticed() -> None:
    modules = {"a.big": (200, {"a.small", "a.long"}), "a.small": (59, set()), "a.long": (60, {"a.big"})}
    assert doors(modules) == ["a.small"]
    assert doors(modules | {"b.other": (9, {"a.small"})}) == []
    table = {"a.kinds": (20, {"a.kinds.card"}), "a.kinds.card": (30, set())}
    assert doors(table) == []


def test_files_that_share_a_worker_or_start_first_are_there(root: Path) -> None:
    named_files = {*(f"tests/{name}.py" for name in conftest.LONG), *conftest.TOGETHER}
    assert {name for name in named_files if not (root / name).is_file()} == set()


def test_all_files_that_ask_for_reports_of_every_kind_share_a_worker(root: Path) -> None:
    """In two workers, these would be made twice, which takes a tenth of a minute each."""
    asking = {
        str(path.relative_to(root))
        for path in (root / "tests").rglob("test_*.py")
        if re.search(r"\bkinds: Kinds\b", path.read_text(encoding="utf-8"))
    }
    assert {name for name, place in conftest.TOGETHER.items() if place == "reports of every kind"} == asking
