"""Numbers that no step has, one at a time in every place of a report: an answer, never an internal error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.reports.codec import encode
from tests.few import few
from tests.hostile.bombs import edited, equal_tensors, facts
from tests.show import made

#: A sign that is wrong, more than a float holds, and no number at all.
NASTY = (-1, 10**400, None)
MORE = (*NASTY, 0, 1e300, 1.5, "x", 2, 1e-300, 2**63)
#: In quick tests each place gets one of ``NASTY`` in turn.
values = pytest.mark.parametrize("values", [NASTY, pytest.param(MORE, marks=pytest.mark.slow)], ids=["nasty", "more"])


def places(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The ways to every number of a report that says something."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("tensors", "versions", "seconds", "schema_version"):
                yield from places(item, (*keys, key))
    elif isinstance(value, list):
        for i, item in enumerate(value[:2]):
            yield from places(item, (*keys, i))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield keys


def changed(data: dict[str, Any], keys: tuple[str | int, ...], value: Any) -> str:
    """The report as JSON, with another value at ``keys``."""
    inner: Any = data
    for step in keys[:-1]:
        inner = inner[step]
    held, inner[keys[-1]] = inner[keys[-1]], value
    try:
        return json.dumps(data)
    finally:
        inner[keys[-1]] = held


def answers(
    path: Path, data: dict[str, Any], values: Sequence[Any], call: Callable[[Path], list[str]], capsys: Any
) -> int:
    """Run ``call`` on a report with each of ``values`` in every place; returns how many places there were."""
    count = 0
    for keys in list(places(data)):
        for value in values if values is MORE else values[count % len(values) :][:1]:
            path.write_text(changed(data, keys, value))
            code = run(call(path))
            captured = capsys.readouterr()
            assert code in (0, 1, 2, 3), (keys, value, captured.err)
            assert "internal error" not in captured.err
        count += 1
    return count


@pytest.fixture
def noised(tmp_path: Path) -> dict[str, Any]:
    """The report of a noise step, with its files beside it."""
    assert run(["noise", str(equal_tensors(tmp_path / "n.safetensors", 2)), *facts(), "-q"]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "n.private.report.json").read_text())
    return found


@values
def test_verify_answers_whatever_the_numbers(
    tmp_path: Path, noised: dict[str, Any], values: Sequence[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.report.json"
    assert answers(path, noised, values, lambda p: ["verify", str(p), "-q"], capsys) > 20
    audit = json.loads(encode(made.audited()))
    assert answers(path, audit, values, lambda p: ["verify", str(p), "-q"], capsys) > 10


@values
def test_the_gate_answers_whatever_the_numbers(
    tmp_path: Path, noised: dict[str, Any], values: Sequence[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.report.json"
    asked = ["--max-epsilon", "8", "--max-auc", "0.7", "--max-exposure", "10", "--max-age-days", "9", "--min-power"]

    def call(report: Path) -> list[str]:
        return ["gate", str(report), *asked, "auc=0.6", "--max-disclosed", "0.1"]

    for data in (noised, json.loads(encode(made.audited())), json.loads(encode(made.trained()))):
        assert answers(path, data, values, call, capsys) >= 9


@values
def test_report_answers_whatever_the_numbers(
    tmp_path: Path, noised: dict[str, Any], values: Sequence[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.report.json"

    def call(report: Path) -> list[str]:
        return ["report", str(report), "--format", "markdown", "-o", "-"]

    for data in (noised, json.loads(encode(made.audited()))):
        assert answers(path, data, values, call, capsys) >= 9


@pytest.mark.parametrize(
    "event",
    [
        {"type": "tree-gaussian", "noise_multiplier": 1e-300, "leaves": 8, "steps": 16},
        {"type": "sampled-gaussian", "noise_multiplier": 1e-100, "sample_rate": 0.1},
        {"type": "sampled-gaussian", "noise_multiplier": 5e-324, "sample_rate": 0.1},
        {"type": "redrawn-gaussian", "noise_multiplier": 1e300, "examples": 10, "draws": 5},
        {"type": "redrawn-gaussian", "noise_multiplier": 1e308, "examples": 10, "draws": 5},
        {
            "type": "truncated-gaussian",
            "noise_multiplier": 1,
            "examples": 10**23,
            "largest_batch": 5,
            "sample_rate": 0.1,
        },
        {"type": "approximate-dp", "epsilon": 1e300, "delta": 1e-7},
        {"type": "exponential", "epsilon": 5e-324},
        {"type": "exponential", "epsilon": 1e308},
        {"type": "zcdp", "rho": 1e308, "steps": 2},
        {"type": "group-gaussian", "noise_multiplier": 1e-200, "group_size": 2},
        {"type": "best-of-runs", "noise_multiplier": 1e-200, "mean_runs": 3},
        {"type": "best-of-laplace-runs", "scale": 5e-324, "mean_runs": 3},
        {"type": "best-of-laplace-runs", "scale": 1e-300, "mean_runs": 3, "shape": None},
        {"type": "replace-one-gaussian", "noise_multiplier": 1e-200, "sample_rate": 0.1},
    ],
    ids=lambda event: f"{event['type']} {min(map(str, event.values()))}",
)
def test_a_ledger_of_numbers_that_no_mechanism_has(
    tmp_path: Path, event: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps([event]))
    code = run(["account", "--ledger", str(path), "--delta", "1e-6", "--json", "-q"])
    captured = capsys.readouterr()
    assert code in (0, 2, 3), captured.err
    for word in ("internal error", "NaN", "zero-size", "Warning", "--rho"):
        assert word not in captured.err
    # Where there is an answer, so little noise gives none that says something.
    found = [guarantee["epsilon"] for guarantee in json.loads(captured.out)["guarantees"]] if code == 0 else []
    assert all(epsilon is None or epsilon > 1e10 for epsilon in found)


@pytest.mark.parametrize("value", [2**63, 10**13, 10**400])
def test_more_epochs_than_anybody_trains(
    tmp_path: Path, noised: dict[str, Any], value: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n.private.report.json"
    assert run(["verify", str(edited(path, ["mechanism", "training", "epochs"], value))]) == 3
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert "epochs" in sentence or "number" in sentence


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="Linux")
@pytest.mark.parametrize(
    "name", few(["/proc/kmsg", "/proc/self/mem", "/proc/kcore", "/dev/zero", "/sys/power/state"], 1, 3)
)
def test_what_the_kernel_makes_up_is_no_report(
    tmp_path: Path, noised: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n.private.report.json"
    other = {"role": "data", "path": name, "digest": "blake3:" + 64 * "0", "bytes": 1}
    for field, item in (
        ("parents", {"path": name, "digest": other["digest"]}),
        ("inputs", other),
        ("outputs", other),
        ("outputs", {**other, "role": "companion"}),
    ):
        path.write_text(json.dumps(noised))
        edited(path, [field], [*noised[field], item])
        for call in (
            ["verify", str(path)],
            ["gate", str(path), "--max-epsilon", "8"],
            ["report", str(path), "-o", "-"],
        ):
            assert run(call) in (0, 1, 3), call
            assert "internal" not in capsys.readouterr().err
        assert run(["inspect", str(tmp_path / "n.private.safetensors")]) in (0, 1, 3)
        assert "internal" not in capsys.readouterr().err
