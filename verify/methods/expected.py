"""What verify expects of a training method's report, stated without the trainer's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from privctl.domain.events import Batches, SampledGaussian, SignBits
from privctl.domain.guarantee import Guarantee
from privctl.domain.mechanism import Mechanism
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import TrainingParameters
from verify.compare import compare

#: Steps that train. They are defined here so that code which needs only the names does not import numpy.
TRAINING, EXTERNAL = "retrain", "external-training"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedTraining(TrainingParameters):
    """The parameters of any training; a report that lacks one of them is rejected. Methods may require more."""

    method: str
    task: str
    examples: int
    batch_size: float
    initial_weights: str
    collected_from_data: tuple[str, ...]


#: How the gradient of an example may be clipped.
CLIPPING = ("flat", "automatic", "per-layer")


def nothing(*_: Any) -> Iterator[str]:
    """Yields nothing."""
    yield from ()


def numbers_of_steps(parameters: Any) -> int | None:
    """A lower bound on how many numbers a method with noisy gradients released: at least one per step begun."""
    counts = [count for count in (parameters.steps_begun, parameters.released_numbers) if count is not None]
    return max(counts, default=None)


def of_poisson_batches(event: SampledGaussian) -> Iterator[str]:
    """Yields a sentence if the batches of the event are not Poisson samples."""
    yield from compare("kind of batches in the ledger", event.batches, Batches.POISSON, "this method draws")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMethod:
    """One method: how its report's parameters, mechanism, guarantees and weights must fit together.

    ``parameters`` is the class of its parameters, a subclass of StatedTraining; the callables below receive an instance
    of it. ``mechanisms`` are the types that its mechanism may have. ``disagreements`` compares a mechanism with the
    parameters, a sentence for each difference. ``premises`` names the assumptions that a guarantee must state, in
    addition to those of every training. ``statements`` and ``accountants`` are the texts of its own assumptions and
    guarantees, as in ``verify.texts``. ``of_another_ledger`` names guarantees about events outside the report's
    ledger. ``warnings`` are the texts of its own warnings, and ``warned`` yields those, as regular expressions, that a
    report with such parameters must have, in addition to those of every training. ``choices`` are the values that a
    parameter may have, if it is stated.

    ``released`` is a lower bound on the noisy numbers released, None if the report does not say. ``signs`` is the
    mechanism of the published signs. ``unclipped`` tells whether the bounds do not depend on clipping. ``rough``, if
    not empty, says why rounding may change a release by more than the margin that clipping reserves. ``noised`` tells
    whether the gradients received noise, ``by_gradients`` whether nothing else moved the weights, ``clipped`` whether
    they were clipped, and ``users`` whether a user's records may be clipped one by one or several as one. ``unbounded``
    (also given whether the optimizer is adaptive) says why nothing bounds how far the weights moved, or "" if something
    does. ``undecided`` yields a sentence for each of the method's parameters that could not be checked, which makes the
    verdict inconclusive.
    """

    parameters: type[StatedTraining] = StatedTraining
    mechanisms: tuple[type, ...]
    disagreements: Callable[[Mechanism | None, Any], Iterator[str]] = nothing
    premises: Callable[[Any, Guarantee], Iterator[str]] = nothing
    statements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accountants: Mapping[str, str] = field(default_factory=dict)
    of_another_ledger: frozenset[str] = frozenset()
    warnings: Mapping[str, str] = field(default_factory=dict)
    warned: Callable[[PrivacyReport, Any], Iterator[str]] = nothing
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    released: Callable[[Any], int | None] = numbers_of_steps
    signs: Callable[[Any], SignBits | None] = lambda _: None
    unclipped: Callable[[Any], bool] = lambda _: False
    rough: str = ""
    noised: bool = False
    by_gradients: bool = False
    clipped: bool = False
    users: bool = False
    unbounded: Callable[[Any, bool], str] = lambda *_: ""
    undecided: Callable[[Any], Iterator[str]] = nothing
