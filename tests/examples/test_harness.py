"""What the Python examples share: a stopped run goes on, and results in the repository show as they did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.harness import commands, running, tables
from examples.harness.results import ResultsFile, open_results
from privctl.domain.errors import InputError
from tests.examples.parts import modules
from tests.few import few

EXAMPLES = ("ferret", "dpquant", "secrets")

#: Measures its letters, each noted in a file; kills itself in the middle of the letter that the environment names.
SCRIPT = """
import os, signal, sys
from pathlib import Path

from examples.harness.running import Cells, Example, measure_missing, parser, run_example, start

options = parser("A toy.", quick="", seeds="").parse_args()


def one(letter):
    with (options.output / "measured.txt").open("a") as file:
        file.write(letter)
    if letter == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
    return {"key": letter, "value": ord(letter)}


def measure(options, file):
    cells = Cells(cells="abcde", key=str, row_key=lambda row: row["key"], measure=one, summary="{key}".format_map)
    measure_missing(file, file.results["runs"], cells)


toy = Example(
    settings=lambda options: {"quick": options.quick},
    start=lambda options: {"runs": []},
    measure=measure,
    table=lambda results: " ".join(str(row["value"]) for row in results["runs"]),
    plot=lambda results: b"<svg/>",
)
start(lambda: run_example(toy, options))
"""


def toy(root: Path, output: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, "-o", str(output), *more],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)} | environment,
        check=False,
    )


@pytest.mark.parametrize(("name", "code"), few([("SIGKILL", -signal.SIGKILL), ("SIGINT", 1)], 1))
def test_a_stopped_run_goes_on_and_measures_nothing_twice(root: Path, tmp_path: Path, name: str, code: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert toy(root, whole).returncode == 0
    stopped = toy(root, broken, KILL_AT="c", SIGNAL=name)
    assert stopped.returncode == code
    assert [row["key"] for row in ResultsFile.read(broken / "results.json").results["runs"]] == ["a", "b"]
    assert name == "SIGKILL" or stopped.stderr.endswith("run.py: stopped; run the same command again to continue\n")
    assert not (broken / "table.md").exists()
    again = toy(root, broken)
    assert again.returncode == 0
    assert "3 of 5: c" in again.stderr
    assert (broken / "measured.txt").read_text() == "abccde"
    for file in ("results.json", "table.md", "plot.svg"):
        assert (broken / file).read_bytes() == (whole / file).read_bytes()
    other = toy(root, broken, "--quick")
    assert (other.returncode, "has results of other settings" in other.stderr) == (1, True)
    assert (broken / "measured.txt").read_text() == "abccde"


def test_a_cell_that_is_asked_for_twice_is_measured_once(tmp_path: Path) -> None:
    file = open_results(tmp_path / "results.json", {}, {"runs": []})
    cells = running.Cells(
        cells="aba", key=str, row_key=lambda row: row["key"], measure=lambda c: {"key": c}, summary="{key}".format_map
    )
    running.measure_missing(file, file.results["runs"], cells)
    assert json.loads((tmp_path / "results.json").read_text()) == {"settings": {}, "runs": [{"key": "a"}, {"key": "b"}]}


def test_a_seed_has_every_cell_in_an_order_of_its_own() -> None:
    cells = running.shuffled(3, lambda seed: [(seed, i) for i in range(20)])
    assert [seed for seed, _ in cells] == [0] * 20 + [1] * 20 + [2] * 20
    orders = [tuple(i for seed, i in cells if seed == which) for which in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({*orders, tuple(range(20))}) == 4
    assert cells == running.shuffled(3, lambda seed: [(seed, i) for i in range(20)])


def test_defaults_fill_only_what_was_not_given() -> None:
    for quick, expected in ((False, 9), (True, 1)):
        known = running.parser("A toy.", quick="", seeds="")
        known.add_argument("--given", type=int)
        known.add_argument("--absent", type=int)
        call = ["-o", "out", "--given", "5", *(["--quick"] if quick else [])]
        options = running.parse(known, call, {"given": (9, 1), "absent": (9, 1), "seeds": (3, 1)})
        assert (options.given, options.absent, options.seeds) == (5, expected, 1 if quick else 3)
    with pytest.raises(SystemExit):
        running.parse(known, [*call, "--seeds", "0"], {})


def test_a_command_that_fails_is_told_from_one_that_refutes(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(code: int) -> Any:
        def run(arguments: list[str]) -> int:
            assert arguments == ["audit", "x", "--quiet", "--json"]
            print('{"found": 7}')
            return code

        return run

    for code in (0, 1):
        monkeypatch.setattr(commands, "run", ends(code))
        assert commands.command("audit", "x").answer == {"found": 7}
    monkeypatch.setattr(commands, "run", ends(3))
    with pytest.raises(commands.CommandFailed, match="privctl audit x ended with 3"):
        commands.command("audit", "x")
    monkeypatch.setattr(commands, "run", ends(130))
    with pytest.raises(KeyboardInterrupt):
        commands.command("audit", "x")


def test_a_model_goes_with_all_that_is_large_and_its_reports_stay(tmp_path: Path) -> None:
    for folder in ("m", "m.run", "n"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.safetensors").write_bytes(b"")
    for file in ("m.report.json", "m.audit.report.json", "m.audit.scores.safetensors", "n.audit.scores.safetensors"):
        (tmp_path / file).write_bytes(b"")
    commands.remove_model(tmp_path / "m")
    commands.remove_model(tmp_path / "m")  # nothing there is no fault
    left = {"m.report.json", "m.audit.report.json", "n", "n.audit.scores.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_fault_is_one_sentence() -> None:
    def fails() -> None:
        raise InputError("x.jsonl is empty; give one with records")

    with pytest.raises(SystemExit, match=r"^run\.py: x\.jsonl is empty; give one with records$"):
        running.start(fails)


def test_numbers_of_several_runs() -> None:
    assert tables.table_lines(["a", "b"], [["1", "2"]]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]
    assert (tables.mean_and_range([2.0]), tables.mean_and_range([1.0, 2.0])) == ("2", "1.5 (1 to 2)")
    assert tables.interval([{"x": [0.5, 0.4, 0.6]}, {"x": [0.7, 0.1, 0.65]}], "x") == "0.600 (0.100 to 0.650)"
    groups = tables.grouped([{"k": 2, "i": 0}, {"k": 1, "i": 1}, {"k": 2, "i": 2}], lambda row: row["k"])
    assert [(key, [row["i"] for row in rows]) for key, rows in groups.items()] == [(2, [0, 2]), (1, [1])]


@pytest.mark.parametrize("name", EXAMPLES)
def test_results_in_the_repository_show_as_they_did(root: Path, name: str) -> None:
    folder, example = root / "examples" / name, modules(name)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert example.showing.table(results) == (folder / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXAMPLES)
def test_results_in_the_repository_can_be_gone_on_from(root: Path, name: str) -> None:
    example = modules(name)
    results = json.loads((root / "examples" / name / "results.json").read_text(encoding="utf-8"))
    options = example.run.parsed(["-o", "unused"])
    assert json.loads(json.dumps(example.run.asked(options))) == results["settings"]
    new = example.run.EXAMPLE.start(options)
    assert ["settings", *new] == list(results)
    assert list(new["measured_with"]) == list(results["measured_with"])


@pytest.mark.parametrize("name", few(EXAMPLES, 0))
def test_help_has_an_example(root: Path, name: str, tmp_path: Path) -> None:
    """The script finds the checkout by itself."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(root / "examples" / name / "run.py"), "--help"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    assert f"python examples/{name}/run.py --data-dir" in done.stdout
    assert "--quick" in done.stdout
