"""The noise that would be needed if training facts are missing, for a few typical values of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from privctl.domain.errors import CommandError
from privctl.domain.mechanism import ClippedTraining, Formula, Optimizer
from privctl.noise.dp_weights import PrivacyTarget, default_delta, noise_stddev, published_stddev
from privctl.noise.facts import REQUIRED

#: Typical values of each fact; the middle one is used while another fact is varied.
TYPICAL: Mapping[str, tuple[float, ...]] = {
    "epochs": (1, 3, 10),
    "learning_rate": (1e-5, 5e-5, 1e-3),
    "clip_norm": (0.1, 1.0, 10.0),
    "dataset_size": (1_000, 10_000, 100_000),
    "batch_size": (8, 32, 128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlookRow:
    """The noise needed if ``fact`` is ``value``; ``stddev`` is None if no finite noise reaches the epsilon.

    ``usual`` marks the value that is used for this fact in the rows of other facts.
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
    """A row for each typical value of each required fact that is not ``known``, except values that contradict a fact.

    The delta used is ``delta``, or if None the default for the row's number of examples; ``target.delta`` is ignored.
    """
    defaults = {name: TYPICAL[name][1] for name in REQUIRED if name not in known} | dict(known)
    if defaults["batch_size"] > defaults["dataset_size"]:
        missing = "dataset_size" if "dataset_size" not in known else "batch_size"
        defaults[missing] = defaults["batch_size" if missing == "dataset_size" else "dataset_size"]
    defaults["optimizer"] = Optimizer(defaults.get("optimizer", Optimizer.SGD))
    for name in REQUIRED:
        for value in TYPICAL[name] if name not in known else ():
            try:
                training = ClippedTraining(**{**defaults, name: value})
            except ValueError:
                continue
            row_target = replace(target, delta=default_delta(training.dataset_size) if delta is None else delta)
            yield OutlookRow(
                fact=name,
                value=value,
                usual=value == defaults[name],
                delta=row_target.delta,
                stddev=_stddev(training, row_target, dimension),
                published_stddev=published_stddev(training, row_target.epsilon, row_target.delta, Formula.ALGORITHM_2),
            )


def _stddev(training: ClippedTraining, target: PrivacyTarget, dimension: int) -> float | None:
    try:
        return noise_stddev(training, target, dimension)
    except CommandError:
        return None
