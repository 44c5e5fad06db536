"""What verify expects of a training method's report, in words of its own: nothing here is the trainer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from privctl.domain.events import Batches, SampledGaussian, SignBits
from privctl.domain.guarantee import Guarantee
from privctl.domain.mechanism import Mechanism
from privctl.reports.parameters import TrainingParameters
from verify.compare import compare


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedTraining(TrainingParameters):
    """The parameters of any training; without these entries none is believed. Each method may add and require more."""

    method: str
    task: str
    examples: int
    batch_size: float
    initial_weights: str
    collected_from_data: tuple[str, ...]


def nothing(*_: Any) -> Iterator[str]:
    """No objection."""
    yield from ()


def numbers_of_steps(said: Any) -> int | None:
    """How many numbers a method of noisy gradients released at least: one in each step that was begun."""
    counts = [count for count in (said.steps_begun, said.released_numbers) if count is not None]
    return max(counts, default=None)


def of_poisson_batches(event: SampledGaussian) -> Iterator[str]:
    """A sentence where the batches of an event are not Poisson samples."""
    yield from compare("kind of batches in the ledger", event.batches, Batches.POISSON, "this method draws")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMethod:
    """One method: how its report's parameters, mechanism, guarantees and weights must hang together.

    ``parameters`` is the class of its parameters, a subclass of StatedTraining; functions called ``said`` below take a
    value of it. ``mechanisms`` are the types that its mechanism may have. ``disagreements`` compares a mechanism with
    what is said, a sentence for each difference. ``premises`` names the assumptions that a guarantee must state, beside
    those of every training. ``statements`` and ``accountants`` are the texts of its own assumptions and guarantees, as
    in ``verify.wording``. ``of_another_ledger`` names guarantees that speak of other events than the report's.

    ``released`` is how many noisy numbers were released at least, None where the report does not say; ``signs`` are the
    signs published, ``unclipped`` whether bounds rest on no clipping. ``rough``, if not empty, says why rounding may
    move what is released by more than clipping leaves for it. Of the weights: ``noised`` and ``clipped`` say what was
    done to gradients, ``unbounded`` (given also whether the optimizer is adaptive) why nothing bounds how far they
    moved, "" where something does.
    """

    parameters: type[StatedTraining] = StatedTraining
    mechanisms: tuple[type, ...]
    disagreements: Callable[[Mechanism | None, Any], Iterator[str]] = nothing
    premises: Callable[[Any, Guarantee], Iterator[str]] = nothing
    statements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accountants: Mapping[str, str] = field(default_factory=dict)
    of_another_ledger: frozenset[str] = frozenset()
    released: Callable[[Any], int | None] = numbers_of_steps
    signs: Callable[[Any], SignBits | None] = lambda _: None
    unclipped: Callable[[Any], bool] = lambda _: False
    rough: str = ""
    noised: bool = False
    clipped: bool = False
    unbounded: Callable[[Any, bool], str] = lambda *_: ""
