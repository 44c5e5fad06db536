"""Workers of pytest compile a checkout between them, and pytest takes what they have compiled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests import compiled
from tests.bytecode import PLACE, search_path


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
    compiled_files = {*cached.iterdir(), *Path(importlib.util.cache_from_source(two)).parent.iterdir()}
    assert sorted(path.name.split(".")[0] for path in compiled_files) == ["test_one", "two"]
    one.write_text("assert 1 + 1 == 3\n")
    assert rewrite._read_pyc(one, cached / f"test_one{rewrite.PYC_TAIL}") is None


def test_this_checkout_is_among_the_sources(root: Path) -> None:
    found = compiled.sources(root)
    assert {root / "verify/run.py", root / "tests/conftest.py", Path(__file__)} <= set(found)
    assert not any("bench" in path.parts for path in found)


_KEEPING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv.pop(1))
from tests.bytecode import keep_in
folder, checkout = map(Path, sys.argv[1:])
keep_in(folder, checkout)
sys.path.insert(0, str(checkout))
import other
from privctl import own
print(own.value)
"""


def test_without_bytecode_beside_sources_the_checkout_s_own_is_kept_elsewhere(tmp_path: Path, root: Path) -> None:
    folder, checkout = tmp_path / "kept", tmp_path / "checkout"
    (checkout / "privctl").mkdir(parents=True)
    own = checkout / "privctl/own.py"
    for path in (checkout / "privctl/__init__.py", checkout / "other.py"):
        path.write_text("")
    for value in ("1", "22"):  # code of a file that has changed since is not used
        own.write_text(f"value = {value}\n")
        command = [sys.executable, "-I", "-S", "-B", "-c", _KEEPING]
        done = subprocess.run([*command, root, folder, checkout], capture_output=True, text=True, check=True)
        assert done.stdout == f"{value}\n"
    assert sorted(path.name.split(".")[0] for path in folder.rglob("*.pyc")) == ["__init__", "own"]
    assert not list(checkout.rglob("*.pyc"))
    (code,) = folder.rglob("own.*.pyc")
    used = code.stat().st_mtime_ns
    subprocess.run([*command, root, folder, checkout], capture_output=True, check=True)
    assert code.stat().st_mtime_ns == used


def test_a_process_on_the_bare_checkout_reads_and_keeps_code_there(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = "import privctl.domain.version as found; print(found.__cached__)"
    monkeypatch.delenv(PLACE, raising=False)
    assert search_path(root) == str(root)
    monkeypatch.setenv(PLACE, str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": search_path(root)}
    command = [sys.executable, "-B", "-c", look]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
    assert Path(done.stdout.strip()).is_file()
