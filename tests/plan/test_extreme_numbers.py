"""Numbers at the ends of what ``privctl account`` takes: each plan has an answer or is refused in one sentence."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from privctl.accounting.events.best_of_runs import ROW
from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.events import BestOfRuns
from tests.few import few

Capture = pytest.CaptureFixture[str]

NOISE = {"--noise-multiplier": ("1e200", "1e-200", "1e308", "1e-320", "1e10")}
LOSS = ("1e-300", "700", "1e-9")
#: Options of each mechanism, with values near both ends and beyond.
OWN: dict[str, dict[str, tuple[str, ...]]] = {
    "gaussian": {**NOISE, "--batches": ("poisson", "shuffled", "fixed-size")},
    "banded": {**NOISE, "--bands": ("1", "2", "8")},
    "blt": {**NOISE, "--buffers": ("1", "2")},
    "tree": {**NOISE, "--tree-steps": ("1", "8")},
    "laplace": {"--scale": ("1e200", "1e-200", "1e308", "1e-320")},
    "discrete-laplace": {"--decay": LOSS, "--sensitivity": ("1", "100001")},
    "discrete-gaussian": {"--stddev": ("0.1", "1e5"), "--sensitivity": ("1", "7")},
    "randomized-response": {"--bit-epsilon": LOSS, "--bits": ("1", "3")},
    "k-ary-response": {"--answer-epsilon": LOSS, "--answers": ("2", "1000000000000")},
    "group-gaussian": {**NOISE, "--group-size": ("1", "3", "100000")},
    "replace-one-gaussian": NOISE,
    "truncated-poisson": {**NOISE, "--largest-batch": ("1", "3"), "--dataset-size": ("1000000000000",)},
    "with-replacement": {**NOISE, "--dataset-size": ("3",), "--batch-size": ("1",), "--epochs": ("1e-300", "9")},
    "approximate-dp": {"--step-epsilon": LOSS, "--step-delta": ("0", "1e-300")},
    "zcdp": {"--rho": LOSS, "--xi": ("1e-300", "1")},
    "exponential": {"--range-epsilon": LOSS},
    "search": {
        **NOISE, "--expected-runs": ("1", "1.000000001", "1000"), "--runs-law": ("geometric", "logarithmic", "poisson"),
    },
    "ferret": {"--groups": ("1", "28"), "--fire-probability": ("1", "1e-300"), "--epsilon": ("1e-300", "0.5")},
    "secret": {**NOISE, "--record": ("1e-300x3", "0.5"), "--prior": ("1e-300", "0.1")},
}  # fmt: skip
RATES, DELTAS, STEPS = (
    ("1", "1e-300", "5e-324"),
    ("1e-5", "1e-320", "0.999"),
    ("1", "1000000000000", "1000000000000000"),
)


def asked(drawn: random.Random, mechanism: str) -> list[str]:
    """The arguments of one plan."""
    numbers = {name: drawn.choice(values) for name, values in OWN[mechanism].items()}
    numbers["--delta"] = drawn.choice(DELTAS)
    if mechanism not in ("with-replacement", "truncated-poisson"):
        numbers["--steps"] = drawn.choice(STEPS)
    if mechanism not in ("with-replacement", "truncated-poisson", "secret"):
        numbers["--sample-rate"] = drawn.choice(RATES)
    if mechanism == "truncated-poisson":
        numbers |= {"--batch-size": "1", "--epochs": drawn.choice(("1e-9", "1e9"))}
    usual = ["--no-peers"] if mechanism == "gaussian" else []
    return ["account", "--mechanism", mechanism, *itertools.chain(*numbers.items()), *usual, "-q"]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("plans", [2, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mechanism", few(OWN, *range(0, len(OWN), 3)))
def test_a_plan_has_an_answer_or_is_refused_in_one_sentence(mechanism: str, plans: int, capsys: Capture) -> None:
    drawn = random.Random(mechanism)
    for _ in range(plans):
        call = asked(drawn, mechanism)
        code, captured = run(call), capsys.readouterr()
        assert code in (ExitCode.OK, ExitCode.USAGE), (call, captured.err)
        if code is not ExitCode.OK:
            assert captured.err.count("\n") == 1, (call, captured.err)
            assert captured.err.startswith("privctl: "), call
        assert not any(words in captured.err for words in ("math domain", "cannot convert", "Warning")), (
            call,
            captured.err,
        )
        assert "nan" not in captured.out.lower().split(), call


def test_a_search_under_noise_whose_square_no_float_holds_costs_next_to_nothing() -> None:
    """Theorem 2 of Papernot and Steinke (2022) at order alpha: log(mean) / (alpha - 1) is left, or less."""
    orders = np.array([2.0, 100.0])
    for noise in (1e200, 1e308):
        found = ROW.divergences(BestOfRuns(noise_multiplier=noise, mean_runs=10), orders)
        assert (found <= math.log(10) / (orders - 1)).all()
