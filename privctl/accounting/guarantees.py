"""Guarantees from ledgers: an (epsilon, delta) together with everything it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from privctl.accounting.gridded import Released, epsilon_with_charge, guarantee_of_floats
from privctl.accounting.ledger import ACCOUNTANT, epsilon_bound, gaussian_shift
from privctl.accounting.risk import risks, trade_off
from privctl.domain.events import Batches, Ledger
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, status_of

#: The accountant's name if the ledger is one exact Gaussian.
EXACT = "analytic Gaussian (Balle and Wang 2018), exact"

_BATCHES = {
    Batches.POISSON: "every example enters each batch independently, with the stated probability",
    Batches.SHUFFLED: "every example is in one batch of each pass, and no other batch depends on it",
    Batches.FIXED_SIZE: "each batch is drawn afresh, uniformly, without replacement, always of the same size",
    Batches.BALLS_AND_BINS: "in each pass every example takes part in exactly one step, chosen uniformly, "
    "independently of every other example, and in secret",
    Batches.CYCLIC_POISSON: "the examples are divided into parts without looking at them, each on its own; steps take "
    "the parts in turn, and of its part a step takes each example independently, with the stated probability times the "
    "number of parts",
    Batches.FIXED_ORDER: "in each pass every example takes part in exactly one step, the same in all passes, which was "
    "chosen without looking at any example",
    Batches.TRUNCATED_POISSON: "every example enters each batch independently, with the stated probability; of a batch "
    "above the stated size so many examples are kept, drawn uniformly",
    Batches.WITH_REPLACEMENT: "each place of a batch is drawn afresh, uniformly among all examples, always of as many "
    "places",
}


def accountant_of(ledger: Ledger) -> str:
    """The name of the accountant used for ``ledger``."""
    return ACCOUNTANT if gaussian_shift(ledger) is None else EXACT


def assumptions_of(ledger: Ledger, state: AssumptionState) -> tuple[Assumption, ...]:
    """The assumptions of every bound on ``ledger``, with the given ``state``."""
    contributions = dict.fromkeys(event.contribution for event in ledger.events)
    kinds = {event.batches_needed for event in ledger.events}
    return (
        *(Assumption(name="contribution", statement=statement, state=state) for statement in contributions),
        *(
            Assumption(name=f"{kind} batches", statement=_BATCHES[kind], state=state)
            for kind in Batches
            if kind in kinds
        ),
    )


def finite(value: float) -> float | None:
    """``value`` if it is finite, else None, as reports state it."""
    return value if math.isfinite(value) else None


def guarantee_of(
    ledger: Ledger,
    delta: float,
    *,
    name: str,
    state: AssumptionState,
    assumptions: Sequence[Assumption] = (),
    priors: Sequence[float] = (),
    note: str = "",
    released: Released | None = None,
) -> Guarantee:
    """The tight guarantee of everything in ``ledger`` at ``delta``, with the risks that remain.

    ``state`` is that of the ledger's own assumptions; ``assumptions`` are added to them. With ``released``, the
    guarantee covers the floats that were written; without, it is for real arithmetic. Raises ValueError for a delta
    outside [0, 1) and for events that do not compose.
    """
    only = ledger.events[0]
    premises = (*assumptions_of(ledger, state), *assumptions)
    if released is None:
        epsilon, known = epsilon_bound(ledger, delta), delta
    else:
        whole, bound = epsilon_with_charge(lambda less: epsilon_bound(ledger, less), released, delta)
        epsilon, known = whole - bound.epsilon if math.isfinite(whole) else whole, bound.delta
    guarantee = Guarantee(
        name=name,
        epsilon=finite(epsilon),
        delta=delta,
        adjacency=ledger.adjacency,
        accountant=accountant_of(ledger),
        status=status_of(premises),
        unit=ledger.unit,
        noise_multiplier=only.noise_to_sensitivity if len(ledger.events) == 1 else None,
        assumptions=premises,
        risks=risks(trade_off(ledger, *(((epsilon, known),) if math.isfinite(epsilon) else ())), priors),
        note=note,
    )
    return guarantee if released is None else guarantee_of_floats(guarantee, released, whole, bound)
