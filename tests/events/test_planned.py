"""Plans that find the noise of a kind for a target: ``verify`` computes them again, and refuses a smaller epsilon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from tests.few import few

#: A mechanism, its options, and what the plan finds.
PLANS = [
    ("discrete-laplace", ["--sensitivity", "2", "--steps", "5"], "decay"),
    ("discrete-gaussian", ["--sensitivity", "2", "--steps", "5"], "stddev"),
    ("k-ary-response", ["--answers", "4"], "answer epsilon"),
    ("approximate-dp", ["--step-delta", "1e-8", "--steps", "5"], "step epsilon"),
    ("zcdp", ["--steps", "5"], "rho"),
]


@pytest.mark.parametrize(("mechanism", "options", "found"), few(PLANS, 0, 1, 2, 3))
def test_planned_and_verified(mechanism: str, options: list[str], found: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    call = ["account", "--mechanism", mechanism, *options, "--epsilon", "1", "--delta", "1e-6"]
    assert run([*call, "-o", str(path), "-q"]) == 0
    report = json.loads(path.read_text())
    assert found in report["parameters"]["found"]
    assert run(["verify", str(path), "-q"]) == 0
    report["guarantees"][0]["epsilon"] *= 0.9
    path.write_text(json.dumps(report))
    assert run(["verify", str(path), "-q"]) in (1, 3)
