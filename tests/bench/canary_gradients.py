"""What canary gradients certify of honest trainings at the noise of epsilon 8, by kind of steps and number of canaries.

The trainings are the product's own loop on points at 0, so that what a canary's coordinate shows is its own gradient
and noise. Bounds are from the released gradients of every step, with the share of the failure probability that an audit
gives them. What one run can show depends on the mechanism: where a record is seldom drawn, few canaries show much.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.common import publish

if TYPE_CHECKING:
    from tests.train.steps.test_half_noise import Kind

EPSILON, DELTA, LEVEL = 8.0, 1e-5, 0.025
COUNTS = (5_001, 20_001, 50_001, 99_999)
HEADINGS = ("steps", "noise multiplier", *(f"{count:,} canaries" for count in COUNTS))
_RATE, _LEAST, _MOST, _PRECISION = 0.1, 0.1, 200.0, 1e-3


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--draws", type=int, default=5, help="trainings of each kind and number of canaries")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for name, kind in _kinds().items():
        for count in COUNTS:
            bounds = [_certified(kind, count, seed) for seed in range(options.draws)]
            found.append({"steps": name, "noise": kind.noise, "canaries": count, "bounds": bounds})
            print(name, f"noise {kind.noise:.4g}, {count} canaries:", bounds, file=sys.stderr, flush=True)
    settings = {"epsilon": EPSILON, "delta": DELTA, "level": LEVEL, "sample rate": _RATE}
    publish("canary-gradients", HEADINGS, rows(found), {"settings": settings, "found": found}, options.output)


def rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row a kind of steps: the median bound, and the least and largest."""
    made: dict[str, list[str]] = {}
    for each in found:
        bounds = each["bounds"]
        shown = f"{median(bounds):.2f} ({min(bounds):.2f} to {max(bounds):.2f})"
        made.setdefault(each["steps"], [each["steps"], f"{each['noise']:.3f}"]).append(shown)
    return list(made.values())


def _kinds() -> dict[str, Kind]:
    from privctl.accounting.banded import banded_coefficients
    from privctl.accounting.buffered_search import buffered_matrix
    from privctl.domain.events import BandedGaussian, Batches, BufferedGaussian, GroupGaussian, SampledGaussian
    from tests.train.steps.test_half_noise import STEPS, Kind

    bands, buffers = banded_coefficients(3, STEPS), buffered_matrix(3, round(1 / _RATE), STEPS)
    matrix = {"first": buffers.first, "weights": buffers.weights, "decays": buffers.decays}
    part: dict[str, Any] = {"noise_multiplier": 1.0, "sample_rate": _RATE, "steps": STEPS}
    in_passes = Batches.BALLS_AND_BINS
    kinds = {
        "all records in each step": Kind(event=SampledGaussian(noise_multiplier=1.0, steps=STEPS), noise=1.0),
        "Poisson batches": Kind(event=SampledGaussian(**part), noise=1.0, rate=_RATE),
        "`--batches balls-and-bins`": Kind(
            event=SampledGaussian(**part, batches=in_passes), noise=1.0, rate=_RATE, more={"batches": in_passes}
        ),
        "`--bands 3`": Kind(
            event=BandedGaussian(**part, coefficients=bands), noise=1.0, rate=_RATE, more={"coefficients": bands}
        ),
        "`--buffers 3`": Kind(
            event=BufferedGaussian(**part, **matrix), noise=1.0, rate=_RATE, more={"matrix": buffers}
        ),
        "`--max-records-per-user 4`": Kind(
            event=GroupGaussian(**part, group_size=4), noise=1.0, rate=_RATE, more={"group": 4}
        ),
    }
    return {name: _with_noise(kind) for name, kind in kinds.items()}


def _with_noise(kind: Kind) -> Kind:
    """With the least noise multiplier of epsilon 8, to a thousandth."""
    from privctl.accounting.ledger import epsilon_bound
    from privctl.domain.events import Ledger

    low, high = _LEAST, _MOST
    while high / low > 1 + _PRECISION:
        middle = (low * high) ** 0.5
        event = replace(kind.event, noise_multiplier=middle)  # type: ignore[type-var]
        low, high = (middle, high) if epsilon_bound(Ledger(events=(event,)), DELTA) > EPSILON else (low, middle)
    return replace(kind, event=replace(kind.event, noise_multiplier=high), noise=high)  # type: ignore[type-var]


def _certified(kind: Kind, count: int, seed: int) -> float:
    import numpy as np

    from audits.canaries.bounds import bounds_of
    from audits.canaries.design import register
    from tests.train.steps.test_half_noise import run_of

    made, canaries = run_of(kind, count=count, seed=seed)
    made.run()
    bound, _ = bounds_of(
        register([1] * count), canaries.every_step, np.ones(count, np.bool_), canaries.included, DELTA, LEVEL
    )
    assert bound.lower is not None
    return round(float(bound.lower), 3)
