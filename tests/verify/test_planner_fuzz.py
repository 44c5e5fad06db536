"""Random plans of ``privctl account``: none refuted, and all decided but where epsilon is below a thousandth.

There the grids that recompute it are too coarse, and some reports are left open.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.verdict import Outcome
from verify.run import read, verify


def spread(drawn: random.Random, low: float, high: float, digits: int = 3) -> float:
    """Even on a logarithmic scale."""
    return float(f"{math.exp(drawn.uniform(math.log(low), math.log(high))):.{digits}g}")


def event(drawn: random.Random, most: int) -> dict[str, object]:
    kind = drawn.choice(["sampled-gaussian", "sampled-gaussian", "laplace", "randomized-response"])
    rate = drawn.choice([1.0, spread(drawn, 1e-4, 0.5), spread(drawn, 1e-4, 0.5)])
    steps = int(spread(drawn, 1, most if kind == "sampled-gaussian" else min(most, 2000), 12))
    own: dict[str, dict[str, object]] = {
        "sampled-gaussian": {"noise_multiplier": spread(drawn, 0.5, 50)},
        "laplace": {"scale": spread(drawn, 0.3, 50)},
        "randomized-response": {"epsilon": spread(drawn, 0.05, 5), "bits": drawn.randint(1, 4)},
    }
    return {"type": kind, "sample_rate": rate, "steps": steps, **own[kind]}


def asked(drawn: random.Random, folder: Path, number: int, most: int) -> list[str]:
    """The arguments of one plan."""
    usual = ["--delta", str(spread(drawn, 1e-9, 1e-3, 2))]
    priors = ["--prior", str(spread(drawn, 1e-4, 0.3, 2))] if drawn.random() < 0.3 else []
    noise = ["--noise-multiplier", str(spread(drawn, 0.5, 20))]
    rate, steps = drawn.choice([1.0, spread(drawn, 1e-4, 0.3)]), int(spread(drawn, 1, most, 12))
    sampled = ["--sample-rate", str(rate), "--steps", str(steps)]
    kind = drawn.choice(["ledger", "ledger", "noise", "noise", "epsilon", "passes", "fixed", "laplace", "bits"])
    if kind == "ledger":
        file = folder / f"{number}.json"
        file.write_text(json.dumps([event(drawn, most) for _ in range(drawn.randint(1, 4))]))
        return [*usual, *priors, "--ledger", str(file)]
    return [
        *usual, *priors,
        *{
            "noise": [*noise, *sampled, "--no-peers"],
            "epsilon": ["--epsilon", str(spread(drawn, 0.05, 20)), *sampled, "--no-peers"],
            "passes": [*noise, "--sample-rate", str(1 / drawn.randint(1, 400)), "--steps", str(steps), "--batches",
                       "shuffled", "--no-peers"],
            "fixed": [*noise, *sampled, "--batches", "fixed-size", "--no-peers"],
            "laplace": ["--mechanism", "laplace", "--scale", str(spread(drawn, 0.3, 50)), *sampled],
            "bits": ["--mechanism", "randomized-response", "--bit-epsilon", str(spread(drawn, 0.05, 5)), "--bits",
                     str(drawn.randint(1, 4)), *sampled],
        }[kind],
    ]  # fmt: skip


#: Rows of refuted formulas, whose noise is so small that the epsilon that follows is in the thousands.
_OF_LITTLE_NOISE = {"poster: naive", "poster: advanced"}


def decided(folder: Path, seed: int, plans: int, most: int) -> Counter[str]:
    """How plans end; fails where one of them is refuted or, with an epsilon that matters, left open."""
    drawn, found = random.Random(seed), Counter[str]()
    for number in range(plans):
        call, report_path = asked(drawn, folder, number, most), folder / f"{number}.report.json"
        code = run(["account", *call, "--json", "-q", "-o", str(report_path)])
        if code:
            assert code == ExitCode.USAGE, call  # no noise meets what is asked
            found["no such plan"] += 1
            continue
        answer = verify(report_path, read(report_path))
        if answer.exit_code is ExitCode.BAD_INPUT and "lies between 0.000" in str(answer.verdicts):
            found["open, epsilon below a thousandth"] += 1
            continue
        undecided = [v for v in answer.verdicts if v.outcome is Outcome.INCONCLUSIVE and v.decisive]
        open_rows = {v.subject for v in undecided}
        if answer.exit_code is ExitCode.BAD_INPUT and open_rows and open_rows <= _OF_LITTLE_NOISE:
            found["open, what follows from next to no noise"] += 1
            continue
        assert answer.exit_code is ExitCode.OK, (call, answer.verdicts)
        standing = [judged.verdict.outcome for judged in answer.guarantees if judged.verdict.decisive]
        found["proved" if set(standing) == {Outcome.PROVED} else "up to rounding"] += 1
    return found


@pytest.mark.forged("verified here, each by itself")
def test_some_plans_are_decided(tmp_path: Path) -> None:
    found = decided(tmp_path, 5, 8, 60)
    assert found["proved"] >= 6


@pytest.mark.slow
@pytest.mark.forged("verified here, each by itself")
@pytest.mark.parametrize("seed", range(5))
def test_hundreds_of_plans_are_decided(tmp_path: Path, seed: int) -> None:
    found = decided(tmp_path, seed, 100, 20_000)
    print(dict(found))
    assert found["proved"] >= 80
    assert found["open, epsilon below a thousandth"] <= 4
    assert found["open, what follows from next to no noise"] <= 4
