"""One entry of a genuine report changed at a time: none that makes a promise look better passes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from privctl.cli import run
from privctl.domain.errors import ExitCode, PrivctlError
from privctl.domain.verdict import Outcome
from tests.verify.mutants import at, better, harmless, mutants
from tests.verify.reports import PLANS, TRAININGS, noise, plan, trained
from verify.run import Verification, read, verify

EVENTS = [
    {"type": "sampled-gaussian", "noise_multiplier": 1.5, "sample_rate": 0.02, "steps": 200},
    {"type": "laplace", "scale": 9, "steps": 3},
    {"type": "randomized-response", "epsilon": 0.3, "bits": 2, "sample_rate": 0.1, "steps": 10},
]
_QUICK = 41
#: In the quick tests the kinds whose verification takes milliseconds.
_QUICK_KINDS = ("noise", "noise, calibrated", "responses", "plan of signs", "plan of passes", "verify")
Kinds = dict[str, Path]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]) -> Kinds:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("leaves")
    (folder / "gaussian").mkdir()
    calibrated = ("--calibration", "gaussian", "--regime", "convex")
    found = {
        "noise": noise(folder, write_model),
        "noise, calibrated": noise(folder / "gaussian", write_model, *calibrated),
    }
    found |= {kind: plan(folder, kind) for kind in PLANS}
    (folder / "events.json").write_text(json.dumps(EVENTS))
    more = {
        "ledger": ["--ledger", str(folder / "events.json")],
        "responses": ["--mechanism", "randomized-response", "--bit-epsilon", "0.5", "--bits", "2", "--sample-rate",
                      "0.05", "--steps", "40"],
    }  # fmt: skip
    for kind, asked in more.items():
        found[kind] = folder / f"{kind}.report.json"
        assert run(["account", "--delta", "1e-5", *asked, "--json", "-q", "-o", str(found[kind])]) == 0
    found["verify"] = folder / "verified.report.json"
    assert run(["verify", str(found["noise"]), "-q", "-o", str(found["verify"])]) == 0
    return found


def verified(place: Path) -> Verification | None:
    """None where it is no report that can be read."""
    try:
        return verify(place, read(place))
    except PrivctlError:
        return None


def true_all_the_same(found: Verification, place: tuple[Any, ...]) -> bool:
    """A changed number of a guarantee that was proved as it stands: another claim, and a true one."""
    if place[0] != "guarantees" or len(place) < 3 or not isinstance(place[1], int):
        return False
    numbers = {"epsilon", "delta", "follows", "floor", "bound"}
    return place[-1] in numbers and found.guarantees[place[1]].verdict.outcome is Outcome.PROVED


def passing(path: Path, every: int) -> Iterator[tuple[str, str]]:
    """What becomes of each mutant."""
    genuine = json.loads(path.read_text())
    mutant_place = path.with_name("mutant.report.json")
    for number, (name, place, mutant) in enumerate(mutants(genuine)):
        if harmless(place, genuine):
            yield "harmless", name
        elif "*" not in place and not better(place, at(genuine, place), at(mutant, place), genuine):
            yield "no better", name
        elif number % every == 0:
            mutant_place.write_text(json.dumps(mutant))
            found = verified(mutant_place)
            if found is None:
                yield "unreadable", name
            elif found.exit_code is ExitCode.OK:
                yield "true" if true_all_the_same(found, place) else "passed", name
            else:
                yield found.exit_code.name, name
    mutant_place.unlink(missing_ok=True)


def check(path: Path, every: int) -> Counter[str]:
    found = list(passing(path, every))
    assert [name for what, name in found if what == "passed"] == []
    return Counter(what for what, _ in found)


@pytest.mark.parametrize("kind", _QUICK_KINDS)
def test_a_sample_of_changes_does_not_pass(kinds: Kinds, kind: str) -> None:
    counts = check(kinds[kind], 1 if kind == "verify" else _QUICK // 4 if kind == "plan of signs" else _QUICK)
    assert counts["REFUTED"] + counts["BAD_INPUT"] >= 3


@pytest.mark.slow
def test_no_change_for_the_better_passes(kinds: Kinds, tmp_path: Path) -> None:
    whole: Counter[str] = Counter()
    for kind, path in {**kinds, **{name: trained(tmp_path, name) for name in TRAININGS}}.items():
        counts = check(path, 1)
        print(kind, dict(counts))
        whole += counts
    print(dict(whole))
    assert whole["REFUTED"] >= 1000


def test_a_ledger_file_is_an_input(tmp_path: Path) -> None:
    file, report = tmp_path / "events.json", tmp_path / "plan.report.json"
    file.write_text(json.dumps(EVENTS[1:]))
    assert run(["account", "--delta", "1e-5", "--ledger", str(file), "--json", "-q", "-o", str(report)]) == 0
    (made,) = read(report).inputs
    assert (made.role, made.path, made.bytes) == ("ledger", "events.json", file.stat().st_size)
    data = json.loads(report.read_text())
    laplace, responses = data["mechanism"]["events"]
    # Fewer events, or weaker ones, make every claim look generous.
    for events in ([laplace], [laplace, {**responses, "epsilon": 0.1}]):
        data["mechanism"]["events"] = events
        report.write_text(json.dumps(data))
        assert verify(report, read(report)).exit_code is ExitCode.REFUTED
    data["inputs"] = []
    report.write_text(json.dumps(data))
    found = verify(report, read(report))
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any("records no digest" in verdict.reason for verdict in found.verdicts)
