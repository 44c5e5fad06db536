"""Group privacy: what steps accounted for one example guarantee to several that are added or removed together."""

from __future__ import annotations

from privctl.domain.events import Batches, Event, GroupGaussian, Ledger, SampledGaussian


def of_group(ledger: Ledger, size: int) -> Ledger:
    """The same steps with a group of ``size`` examples as the unit of privacy; see ``events.group_gaussian``.

    If the unit is a group already, the result is for ``size`` such groups. Raises ValueError, naming the event, if
    there is no group bound for it.
    """
    return Ledger(events=tuple(_group_event(event, size) for event in ledger.events))


def _group_event(event: Event, size: int) -> GroupGaussian:
    if isinstance(event, GroupGaussian):
        size, poisson = size * event.group_size, True
    else:
        poisson = isinstance(event, SampledGaussian) and event.batches is Batches.POISSON
    if not poisson or not isinstance(event, SampledGaussian | GroupGaussian):
        batches = f" in {event.batches_needed} batches" if event.batches_needed is not None else ""
        raise ValueError(
            f"group_size is {size}; for groups no bound is derived here on {event.tag} events{batches}, only on "
            "Gaussian noise in Poisson batches"
        )
    return GroupGaussian(
        noise_multiplier=event.noise_multiplier, group_size=size, sample_rate=event.sample_rate, steps=event.steps
    )
