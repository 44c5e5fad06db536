"""The noise that would be needed where facts of the training are missing: for a few usual values of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from privctl.domain.errors import CommandError
from privctl.domain.mechanism import ClippedTraining, Formula, Optimizer
from privctl.noise.dp_weights import PrivacyTarget, default_delta, noise_stddev, published_stddev
from privctl.noise.facts import REQUIRED

#: Usual values of a missing fact; the middle one stands in for it while another is varied.
TYPICAL: Mapping[str, tuple[float, ...]] = {
    "epochs": (1, 3, 10),
    "learning_rate": (1e-5, 5e-5, 1e-3),
    "clip_norm": (0.1, 1.0, 10.0),
    "dataset_size": (1_000, 10_000, 100_000),
    "batch_size": (8, 32, 128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlookRow:
    """The noise where ``fact`` is ``value``; ``stddev`` is None where no finite noise reaches the epsilon.

    ``usual`` marks the value that stands in for the fact in the rows of others.
    """

    fact: str
    value: float
    usual: bool
    delta: float
    stddev: float | None
    published_stddev: float


def outlook(
    known: Mapping[str, Any], target: PrivacyTarget, dimension: int, delta: float | None
) -> Iterator[OutlookRow]:
    """A row for each usual value of each required fact that is not ``known``, but for values that contradict a fact.

    ``target``'s own delta is not read: it is ``delta``, or the default for the row's number of examples.
    """
    standing = {name: TYPICAL[name][1] for name in REQUIRED if name not in known} | dict(known)
    if standing["batch_size"] > standing["dataset_size"]:
        missing = "dataset_size" if "dataset_size" not in known else "batch_size"
        standing[missing] = standing["batch_size" if missing == "dataset_size" else "dataset_size"]
    standing["optimizer"] = Optimizer(standing.get("optimizer", Optimizer.SGD))
    for name in REQUIRED:
        for value in TYPICAL[name] if name not in known else ():
            try:
                training = ClippedTraining(**{**standing, name: value})
            except ValueError:
                continue
            aimed = replace(target, delta=default_delta(training.dataset_size) if delta is None else delta)
            yield OutlookRow(
                fact=name,
                value=value,
                usual=value == standing[name],
                delta=aimed.delta,
                stddev=_stddev(training, aimed, dimension),
                published_stddev=published_stddev(training, aimed.epsilon, aimed.delta, Formula.ALGORITHM_2),
            )


def _stddev(training: ClippedTraining, target: PrivacyTarget, dimension: int) -> float | None:
    try:
        return noise_stddev(training, target, dimension)
    except CommandError:
        return None
