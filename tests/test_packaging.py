"""What is installed: every file of the packages, types that checkers read, and versions that were tried."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("audits", "privctl", "verify")
PROJECT = SETUP["project"]
WANTED = [Requirement(line) for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]]
PINS = {
    name.lower(): version
    for name, _, version in (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    if version
}


def left_out(package: Path, patterns: Sequence[str]) -> list[str]:
    """The files below ``package`` that are neither code nor matched by a pattern of package data."""
    files = [path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()]
    data = [name for name in files if not name.endswith(".py") and "__pycache__" not in name]
    return sorted(name for name in data if not any(fnmatch(name, pattern) for pattern in patterns))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_is_installed(package: str) -> None:
    data: Mapping[str, Sequence[str]] = SETUP["tool"]["setuptools"]["package-data"]
    assert left_out(ROOT / package, data[package]) == []
    assert left_out(ROOT / package, [each for each in data[package] if each != "py.typed"]) == ["py.typed"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_of_code_is_a_package(package: str) -> None:
    """A folder without ``__init__.py`` is imported from a checkout, and left out of what is installed."""
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def out_of_range(wanted: Sequence[Requirement], pins: Mapping[str, str]) -> list[str]:
    """The requirements that no pin meets."""
    return [
        str(each)
        for each in wanted
        if each.name.lower() not in pins or not each.specifier.contains(pins[each.name.lower()])
    ]


def test_constraints_pin_every_dependency_within_its_range() -> None:
    assert out_of_range(WANTED, PINS) == []
    assert out_of_range(WANTED, {**PINS, "numpy": "1.26.4"}) == ["numpy>=2.0"]
    assert out_of_range([Requirement("unheard-of")], PINS) == ["unheard-of"]
    assert not [version for version in PINS.values() if "+" in version], "a local version is on no index"


def test_ci_runs_every_python_that_is_promised() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    promised = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: Python :: \d", name)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == promised
    assert PROJECT["requires-python"] == f">={min(promised, key=Version)}"


def test_the_tutorial_states_versions_that_are_pinned_and_lowest() -> None:
    """A bound or pin that is changed is tried anew before it is stated."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "| 3.1" in line]
    names, pinned, lowest = ("torch", "transformers", "numpy", "scipy"), rows[0][1:5], rows[1][1:5]
    assert pinned == [PINS[name] for name in names]
    bounds = {each.name: str(each.specifier).removeprefix(">=") for each in WANTED}
    assert [Version(version) for version in lowest] == [Version(bounds[name]) for name in names]
    assert {row[0] for row in rows} == {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if "3.1" in name}
