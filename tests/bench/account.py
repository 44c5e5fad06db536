"""The accountant against other people's: speed, and beside it how tight and how sound each answer is.

All parties run in one process, warm, on one thread, taking turns; ratios are between times of the same round. What each
returns is judged by our own two-sided bounds, outside the clock. Importing them is measured in processes of their own.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from statistics import median
from typing import Any

from privctl.plan import peers
from tests.bench.common import Variant, execute, interleave, publish, ratio, summary

OURS = "privctl"
#: Noise multipliers as near to the least as our own search goes, relatively; dp-accounting's own default is 1e-6.
TOLERANCE = 2e-5
#: The grid of dp-accounting's mixture; its default of 1e-4 takes some ten times as long.
GRID = 1e-3


@dataclass(frozen=True, slots=True)
class Training:
    """Steps of a sampled Gaussian, and either the epsilon aimed at or the noise multiplier."""

    rate: float
    steps: int
    delta: float
    epsilon: float = 0.0
    noise: float = 0.0

    def __str__(self) -> str:
        aim = f"epsilon {self.epsilon:g}" if self.epsilon else f"noise {self.noise:g}"
        return f"q {self.rate:.4g}, T {self.steps}, delta {self.delta:g}, {aim}"


@dataclass(frozen=True, slots=True)
class Secret:
    """``count`` records, each in a batch with its own ``probability``, under noise ``sigma``."""

    count: int
    probability: float
    sigma: float

    def __str__(self) -> str:
        return f"{self.count} x {self.probability:g}, sigma {self.sigma:g}"


#: Rows of docs/theory.md#noise-for-a-target-epsilon, and one long training of a large model.
TO_CALIBRATE = (
    Training(0.01, 1000, 1e-5, epsilon=1),
    Training(0.01, 1000, 1e-5, epsilon=8),
    Training(0.005, 1000, 1e-5, epsilon=1),
    Training(0.05, 1000, 1e-5, epsilon=2),
    Training(1 / 4096, 100_000, 1e-6, epsilon=2),
)
#: Rows of docs/theory.md#epsilon-of-sampled-gaussians, one of 14,062 steps, and one delta far smaller.
TO_EVALUATE = (
    Training(0.01, 1000, 1e-5, noise=1),
    Training(0.005, 1000, 1e-5, noise=1),
    Training(0.02, 500, 1e-5, noise=0.8),
    Training(0.05, 2000, 1e-6, noise=2),
    Training(256 / 60000, 14062, 1e-5, noise=1.1),
    Training(0.001, 10000, 1e-6, noise=0.6),
    Training(0.01, 1000, 1e-15, noise=1),
)
#: Rows of docs/papers.md#divergence-of-a-mixture.
SECRETS = (Secret(1, 0.01, 1), Secret(3, 0.1, 1), Secret(8, 0.005, 0.5), Secret(50, 0.001, 1))
IMPORTS = {OURS: "privctl.accounting.calibrate", "dp-accounting": "dp_accounting", "opacus": "opacus.accountants"}

Parties = Mapping[str, Callable[[], float]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=3)


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # before anything imports numpy
    absent = [name for name in peers.PEERS if not peers.is_installed(name)]
    for name in absent:
        print(f"{name} is not installed and left out", file=sys.stderr)
    for measure, row in ((_calibration, TO_CALIBRATE[0]), (_evaluation, TO_EVALUATE[0]), (_divergence, SECRETS[0])):
        measure(row, 1)  # imports, and fills whatever is cached
    data = {
        "rounds": options.rounds,
        "threads": 1,
        "peers": {name: _version(peer.distribution) for name, peer in peers.PEERS.items()},
        "left_out": absent,
        "dp_accounting_tolerance": TOLERANCE,
        "calibration": [_calibration(row, options.rounds) for row in TO_CALIBRATE],
        "epsilon": [_evaluation(row, options.rounds) for row in TO_EVALUATE],
        "mixture_kl": [_divergence(row, max(1, options.rounds - 1)) for row in SECRETS],
        "imports": _imports(2 * options.rounds + 1),
    }
    headings = ["what", "case", "party", "median ms", "/ privctl", "answer", "judged by our bounds"]
    publish("account", headings, _rows(data), data, options.output)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _calibration(row: Training, rounds: int) -> dict[str, Any]:
    """The least noise multiplier, and the epsilon that each party's answer really has."""
    from privctl.accounting import calibrate as calibration
    from privctl.accounting import ledger

    parties: dict[str, Callable[[], float]] = {
        OURS: lambda: calibration.noise_multiplier_for(row.epsilon, row.delta, lambda noise: _ledger(row, noise)),
        "dp-accounting": lambda: peers.dp_accounting_pld_noise_multiplier(
            row.epsilon, row.delta, row.rate, row.steps, tolerance=TOLERANCE
        ),
        "opacus": lambda: peers.opacus_prv_noise_multiplier(row.epsilon, row.delta, row.rate, row.steps),
    }
    found = _take_turns(str(row), parties, rounds)
    for result in found.values():
        if result["answer"] is not None:
            ours = _ledger(row, result["answer"])
            low, high = ledger.epsilon_floor(ours, row.delta), ledger.epsilon_bound(ours, row.delta)
            result["certified_epsilon"] = [low, high]
            verdict = "meets it" if high <= row.epsilon else "misses it" if low > row.epsilon else "not decided"
            result["judged"] = f"epsilon {low:.5f} .. {high:.6f}: {verdict}"
    return {"case": str(row), **asdict(row), "parties": found}


def _evaluation(row: Training, rounds: int) -> dict[str, Any]:
    """Epsilon at one noise multiplier, and how far each bound is above our lower bound."""
    from privctl.accounting import ledger

    asked = (row.noise, row.rate, row.steps, row.delta)
    parties: dict[str, Callable[[], float]] = {
        OURS: lambda: ledger.epsilon_bound(_ledger(row, row.noise), row.delta),
        "dp-accounting": lambda: peers.dp_accounting_pld_epsilon(*asked),
        "opacus": lambda: peers.opacus_prv_epsilon(*asked),
    }
    found = _take_turns(str(row), parties, rounds)
    floor = ledger.epsilon_floor(_ledger(row, row.noise), row.delta)
    for result in found.values():
        if result["answer"] is not None:
            result["above_floor"] = result["answer"] - floor
            result["judged"] = f"{result['above_floor']:+.5f} to our floor {floor:.5f}"
    return {"case": str(row), **asdict(row), "floor": floor, "parties": found}


def _divergence(row: Secret, rounds: int) -> dict[str, Any]:
    """KL divergence of one step's mixture of Gaussians from the Gaussian without the secret, in nats."""
    from privctl.accounting import mixtures
    from privctl.accounting.poisson_binomial import poisson_binomial

    probabilities = [row.probability] * row.count
    law = poisson_binomial(probabilities)
    parties: dict[str, Callable[[], float]] = {
        OURS: lambda: mixtures.kl(poisson_binomial(probabilities), row.sigma),
        "dp-accounting": lambda: mixture_mean(row.sigma, law.shifts.tolist(), law.weights.tolist()),
    }
    found = _take_turns(str(row), parties, rounds)
    for result in found.values():
        if result["answer"] is not None:
            result["relative_error"] = result["answer"] / found[OURS]["answer"] - 1
            result["judged"] = f"{result['relative_error']:+.1e} relative to the integral"
    return {"case": str(row), **asdict(row), "parties": found}


def _imports(rounds: int) -> dict[str, Any]:
    """Importing each accountant in a process of its own."""
    wanted = {n: module for n, module in IMPORTS.items() if n == OURS or peers.is_installed(n)}
    variants = {
        "python": Variant([sys.executable, "-c", "pass"]),
        **{n: Variant([sys.executable, "-W", "ignore", "-c", f"import {module}"]) for n, module in wanted.items()},
    }
    for variant in variants.values():
        execute(variant.command)  # compiles bytecode and warms the page cache
    runs = interleave(variants, rounds)
    return {n: {**summary(of_name), "to_ours": ratio(runs, n, OURS)} for n, of_name in runs.items()}


def _take_turns(case: str, parties: Parties, rounds: int) -> dict[str, dict[str, Any]]:
    """Every installed party once a round, each round beginning with the next one; failures are told, not timed."""
    print(case, file=sys.stderr, flush=True)
    names = [name for name in parties if name == OURS or peers.is_installed(name)]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    answers: dict[str, float] = {}
    failures: dict[str, str] = {}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            if name not in failures:
                started = time.perf_counter()
                try:
                    answers[name] = parties[name]()
                    if math.isinf(answers[name]):
                        failures[name] = "finds no finite answer"
                except ValueError as fault:
                    failures[name] = str(fault)
                seconds[name].append(time.perf_counter() - started)
    timed = {
        name: {
            "median_s": median(of_name),
            "min_s": min(of_name),
            "max_s": max(of_name),
            "to_ours": median(a / b for a, b in zip(of_name, seconds[OURS], strict=True)),
            "seconds": of_name,
            "answer": answers[name],
        }
        for name, of_name in seconds.items()
        if name not in failures
    }
    return timed | {name: {"answer": None, "judged": message} for name, message in failures.items()}


def _ledger(row: Training, noise: float) -> Any:
    from privctl.domain.events import Ledger, SampledGaussian

    return Ledger(events=(SampledGaussian(noise_multiplier=noise, sample_rate=row.rate, steps=row.steps),))


def mixture_mean(sigma: float, shifts: Sequence[float], weights: Sequence[float]) -> float:
    """The mean of dp-accounting's privacy loss distribution of the mixture."""
    import numpy as np
    from dp_accounting.pld import privacy_loss_distribution

    distribution = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, shifts, weights, value_discretization_interval=GRID
    )
    masses = distribution._pmf_remove.to_dense_pmf()
    losses = GRID * (masses._lower_loss + np.arange(len(masses._probs)))
    return float(np.dot(masses._probs, losses))


def _rows(data: Mapping[str, Any]) -> list[list[str]]:
    """The table: one line for each case and party."""
    rows = []
    names = (("calibration", "noise"), ("epsilon", "epsilon"), ("mixture_kl", "mixture KL"))
    for section, what in names:
        for entry in data[section]:
            for party, result in entry["parties"].items():
                timed = ["-", "-", "-"]
                if result["answer"] is not None:
                    timed = [f"{1000 * result['median_s']:.2f}", f"{result['to_ours']:.1f}", f"{result['answer']:.8g}"]
                rows.append([what, entry["case"], party, *timed, result["judged"][:60]])
    for party, result in data["imports"].items():
        rows.append(["import", "", party, f"{1000 * result['median_s']:.0f}", f"{result['to_ours']:.2f}", "-", ""])
    return rows
