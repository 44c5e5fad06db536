"""What canary gradients certify of honest trainings at the noise of epsilon 8, by kind of steps and number of canaries.

The trainings are the product's own loop on points at 0, so that what a canary's coordinate shows is its own gradient
and noise. Bounds are from the released gradients of every step, with the share of the failure probability that an audit
gives them. What one run can show depends on the mechanism: where a record is seldom drawn, few canaries show much.
Beside them stands the epsilon of the largest noise multiplier that steps otherwise as stated can have had, and how
often that multiplier is below the true one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.common import publish

if TYPE_CHECKING:
    from audits.claims import CurveClaim
    from tests.train.steps.test_half_noise import Kind

EPSILON, DELTA, LEVEL = 8.0, 1e-5, 0.025
COUNTS = (5_001, 20_001, 50_001, 99_999)
#: Those of the columns on steps as stated, and canaries and trainings of each kind that show how often these err.
AS_STATED, FEW, MANY_TRAININGS = (5_001, 50_001), 501, 200
HEADINGS = (
    "steps",
    "noise multiplier",
    *(f"{count:,} canaries" for count in COUNTS),
    *(f"{count:,}, if only the noise may differ" for count in AS_STATED),
    "wrong noise bounds",
)
_RATE, _LEAST, _MOST, _PRECISION = 0.1, 0.1, 200.0, 1e-3


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--draws", type=int, default=3, help="trainings of each kind and number of canaries")
    parser.add_argument("--trainings", type=int, default=MANY_TRAININGS, help="of each kind, to see how often it errs")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for name, kind in _kinds().items():
        claim = _claim(kind)
        for count in COUNTS:
            certified = [_certified(kind, claim, count, seed) for seed in range(options.draws)]
            bounds, noises, epsilons = zip(*certified, strict=True)
            found.append({
                "steps": name, "noise": kind.noise, "canaries": count, "bounds": bounds, "noise at most": noises,
                "epsilon as stated": epsilons,
            })  # fmt: skip
            print(name, f"noise {kind.noise:.4g}, {count} canaries:", certified, file=sys.stderr, flush=True)
        shares = [_certified(kind, claim, FEW, 1000 + seed)[1] for seed in range(options.trainings)]
        wrong = sum(share is not None and share <= 1 for share in shares)
        found.append({"steps": name, "canaries": FEW, "trainings": options.trainings, "too high": wrong})
        print(name, f"{FEW} canaries: too high {wrong} times of {options.trainings}", file=sys.stderr, flush=True)
    settings = {"epsilon": EPSILON, "delta": DELTA, "level": LEVEL, "sample rate": _RATE}
    publish("canary-gradients", HEADINGS, rows(found), {"settings": settings, "found": found}, options.output)


def rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row a kind of steps: the median bound, and the least and largest; how often that as stated is too high."""
    cells: dict[str, list[str]] = {}
    for each in found:
        if "bounds" in each:
            cells.setdefault(each["steps"], [each["steps"], f"{each['noise']:.3f}"]).append(_spread(each["bounds"]))
    for each in found:
        if each["canaries"] in AS_STATED:
            cells[each["steps"]].append(_spread(each["epsilon as stated"]))
        elif "too high" in each:
            cells[each["steps"]].append(f"{each['too high']} of {each['trainings']}")
    return list(cells.values())


def _spread(bounds: Sequence[float]) -> str:
    return f"{median(bounds):.2f} ({min(bounds):.2f} to {max(bounds):.2f})"


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


def _claim(kind: Kind) -> CurveClaim:
    """The mechanism of ``kind`` and its family of any noise; each point of the search is computed once."""
    from audits.claims import CurveClaim
    from audits.mechanism_curve import family_of
    from privctl.accounting.ledger import epsilon_bound
    from privctl.accounting.profile import profile
    from privctl.domain.events import Ledger

    known, ledger = lru_cache(None)(profile), Ledger(events=(kind.event,))
    return CurveClaim(
        mechanism=ledger, points=known(ledger), source="m", family=family_of(ledger, known, epsilon_bound)
    )


def _certified(kind: Kind, claim: CurveClaim, count: int, seed: int) -> tuple[float, float | None, float]:
    """Epsilon at least; the noise at most as a share of what is stated, None for any, and the epsilon of that."""
    import numpy as np

    from audits.canaries.bounds import bounds_of
    from audits.canaries.design import register
    from audits.canaries.stated_noise import noise_bound
    from tests.train.steps.test_half_noise import run_of

    run, canaries = run_of(kind, count=count, seed=seed)
    run.run()
    found = bounds_of(
        register([1] * count), canaries.every_step, np.ones(count, np.bool_), canaries.included, DELTA, LEVEL
    )
    (noise,) = noise_bound(found, claim, DELTA, own_coordinates=True)
    assert found[0].lower is not None
    share, epsilon = noise.details.get("share"), noise.details.get("epsilon", 0.0)
    return round(float(found[0].lower), 3), share, round(epsilon, 3)
