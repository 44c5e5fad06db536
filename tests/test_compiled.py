"""Workers of pytest compile a checkout between them, and pytest takes what they have compiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests import compiled


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_worker_walks_everything_and_their_first_shares_are_apart(count: int) -> None:
    paths = [Path(f"{i}.py") for i in range(20)]
    walks = [list(compiled.walk(paths, number, count)) for number in range(count)]
    assert all(sorted(taken) == sorted(paths) for taken in walks)
    assert {path for taken in walks for path in taken[: 20 // count]} == set(paths)


def test_an_odd_worker_walks_everything_too() -> None:
    paths = [Path(f"{i}.py") for i in range(20)]
    assert all(sorted(compiled.walk(paths, number, 3)) == sorted(paths) for number in range(3))


def test_pytest_and_python_read_what_was_compiled(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    texts = {"test_one.py": "assert 1 + 1 == 2\n", "test_broken.py": "def\n", "two.py": "two = 2\n", "broken.py": "("}
    for name, text in texts.items():
        (folder / name).write_text(text)
    for path in compiled.sources(tmp_path):
        compiled.compile_one(path, pytestconfig)
    one, two = folder / "test_one.py", folder / "two.py"
    cached = rewrite.get_cache_dir(one)
    code = rewrite._read_pyc(one, cached / f"test_one{rewrite.PYC_TAIL}")
    assert code is not None
    assert "@pytest_ar" in code.co_names  # its asserts are rewritten
    assert Path(importlib.util.cache_from_source(two)).is_file()
    assert sorted(path.name.split(".")[0] for path in cached.iterdir()) == ["test_one", "two"]
    one.write_text("assert 1 + 1 == 3\n")
    assert rewrite._read_pyc(one, cached / f"test_one{rewrite.PYC_TAIL}") is None


def test_this_checkout_is_among_the_sources(root: Path) -> None:
    found = compiled.sources(root)
    assert {root / "verify/run.py", root / "tests/conftest.py", Path(__file__)} <= set(found)
    assert not any("bench" in path.parts for path in found)
