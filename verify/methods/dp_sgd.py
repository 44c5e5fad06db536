"""DP-SGD: all steps begun, at the rate and noise of the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.mechanism import Mechanism
from privctl.domain.shown import counted
from verify.compare import compare
from verify.method import ExpectedMethod, StatedTraining, of_poisson_batches
from verify.wording import TIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyGradients(StatedTraining):
    """Of a method that adds noise to clipped gradients of Poisson batches."""

    sample_rate: float
    noise_multiplier: float
    steps_begun: int


def sampled_only(ledger: Ledger) -> list[SampledGaussian] | None:
    """Its events; None where one of another kind is among them."""
    events = [event for event in ledger.events if isinstance(event, SampledGaussian)]
    return events if len(events) == len(ledger.events) else None


def steps_disagree(events: Sequence[SampledGaussian], said: NoisyGradients) -> Iterator[str]:
    """What differs between the events of the steps and what is said of them."""
    total = sum(event.steps for event in events)
    yield from compare("number of steps in the ledger", total, said.steps_begun, "steps_begun says")
    # Of a plan's records, the one drawn most often is accounted for.
    rate = said.sample_rate if said.plan is None else said.plan.largest_probability
    for event in events:
        yield from compare("rate in the ledger", event.sample_rate, rate, "the parameters say")
        noise = said.noise_multiplier
        yield from compare("noise multiplier in the ledger", event.noise_multiplier, noise, "the parameters say")
        yield from of_poisson_batches(event)
    if said.updates is not None and said.updates > total:
        made = counted(said.updates, "update was", "updates were")
        yield f"{made} made, but the ledger holds {counted(total, 'step')}"


def _disagreements(mechanism: Mechanism | None, said: NoisyGradients) -> Iterator[str]:
    if isinstance(mechanism, Ledger) and (events := sampled_only(mechanism)) is not None:
        yield from steps_disagree(events, said)


EXPECTED = ExpectedMethod(
    parameters=NoisyGradients,
    mechanisms=(Ledger,),
    disagreements=_disagreements,
    accountants={"dp-sgd": TIGHT},
    noised=True,
    clipped=True,
)
