"""Caps that are compared: which, and what becomes of those that cannot be met."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privctl.domain.errors import CommandError
from privctl.secrets.plan import sweep
from privctl.secrets.plan.targets import PosteriorTarget, PosteriorTargets
from privctl.secrets.protection import Protection, ProtectionCalibration
from verify.recompute.curve_posteriors import largest_success

PROBLEM: Any = SimpleNamespace(largest_cap=8.0)


def progress(*_: object) -> Any:
    return nullcontext(lambda _: None)


def test_caps_fall_from_the_largest_useful_one_to_a_thousandth_of_it() -> None:
    none, *caps = sweep.caps_to_sweep(PROBLEM)
    assert none is None
    assert len(caps) == 10
    assert caps[-1] == pytest.approx(8 / 1000)
    steps = [later / earlier for earlier, later in zip([8.0, *caps], caps, strict=False)]
    assert steps == pytest.approx([1000 ** (-1 / 10)] * 10)


def test_a_cap_that_cannot_be_met_is_refused_and_the_others_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(_: object, cap: float | None, __: object) -> float:
        if cap is not None and cap < 2:
            raise CommandError(f"cap {cap:g} cannot be met")
        return 0.0 if cap is None else cap

    monkeypatch.setattr(sweep, "_try_cap", tried)
    found = sweep.sweep_caps(PROBLEM, [None, 4.0, 1.0, 2.0], progress, strict=False)
    assert (found.tried, found.refused) == ((0.0, 4.0, 2.0), ((1.0, "cap 1 cannot be met"),))
    for caps, strict in (([4.0, 1.0], True), ([1.0], False)):
        with pytest.raises(CommandError, match="cap 1 cannot be met"):
            sweep.sweep_caps(PROBLEM, caps, progress, strict=strict)


def planned(folder: Path) -> Protection:
    """A plan by Fano's inequality of 30 secrets, more than have curves of their own; the first lie in most records."""
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": f"mail {i}"}) + "\n" for i in range(90)))
    rows = [
        {"id": f"s{j}", "kind": "email", "records": list(range(3 * j, 3 * j + (3 if j < 3 else 2)))} for j in range(30)
    ]
    (folder / "book.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = sweep.PlanRequest(
        data=folder / "data.jsonl",
        secrets=folder / "book.jsonl",
        steps=50,
        batch_size=9,
        targets=PosteriorTargets(default=PosteriorTarget(prior=0.001, posterior=0.1), by_kind={}),
        calibration=ProtectionCalibration.FANO,
    )
    problem = sweep.read_problem(request)
    return sweep.protection_of(problem, sweep.sweep_caps(problem, [None], progress, strict=True).tried[0])


@pytest.mark.parametrize("sharpened", [True, False])
def test_posteriors_by_the_curve_at_the_noise_of_fanos_inequality(
    sharpened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the secret nearest to its target is by its own curve, as verify has it. Planted: that of its group."""
    if not sharpened:
        monkeypatch.setattr(sweep, "sharpen", lambda *_: 0)
    plan = planned(tmp_path)
    j = sweep.nearest_secret(plan, curve=True)
    assert j is not None
    records = plan.records[plan.starts[j] : plan.starts[j + 1]]
    noise, prior = plan.facts.noise_multiplier, float(plan.priors[j])
    found = largest_success(plan.probabilities[records], noise, plan.facts.steps, prior, 1.0)
    assert found.lower <= plan.curve_bounds[j] * (1 + 1e-9)
    assert bool(plan.curve_bounds[j] < 1.003 * found.upper) is sharpened
