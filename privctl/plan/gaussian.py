"""A sampled Gaussian, the mechanism of DP-SGD, by every accounting method."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from privctl.accounting import ledger
from privctl.accounting.guarantees import assumptions_of, finite, guarantee_of
from privctl.accounting.methods import AccountingMethod, adjacency_for, methods_for
from privctl.domain.checks import positive
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.guarantee import Adjacency, AssumptionState, Guarantee, Status
from privctl.plan import peers
from privctl.plan.accountants import AccountantRow, BudgetPlan

#: Relative precision of the bound shown next to a method's number, and of the floor that may refute it.
_COMPARING, _REFUTING = 1e-3, 1e-4
#: Batches for which some data set attains the tight accountant's dominating pair, so that lower bounds are valid.
_ATTAINED = (Batches.POISSON, Batches.BALLS_AND_BINS)

Note = Callable[[str], None]


def plan_gaussian(
    event: SampledGaussian,
    delta: float,
    *,
    target: float | None = None,
    only: Sequence[str] = (),
    with_peers: bool = True,
    priors: Sequence[float] = (),
    note: Note = lambda text: None,
) -> BudgetPlan:
    """Every method's result for a sampled Gaussian: epsilon for its noise, or the noise for a ``target`` epsilon.

    ``only`` lists the rows to compute (default: all); ``note`` is called with each row's title before it starts. The
    resulting mechanism has the noise of the main row, which is computed first. Raises ValueError if the main row has no
    result.
    """
    if target is not None:
        positive("epsilon", target)
    table = dict(methods_for(event.batches))
    if with_peers:
        table |= _peer_methods()
    main = "tight" if event.batches is not Batches.POISSON else "pld"
    chosen = [key for key in table if not only or key in only or key == main]
    main_row = _main_row(main, table[main], event, delta, target, priors)
    rows = []
    for key in chosen:
        note(table[key].title)
        rows.append(main_row if key == main else _row(key, table[key], event, delta, target, main_row))
    assert main_row.guarantee is not None
    noise = main_row.guarantee.noise_multiplier or event.noise_multiplier
    return BudgetPlan(
        mechanism=Ledger(events=(replace(event, noise_multiplier=noise),)),
        rows=tuple(rows),
        main=main,
        solved="epsilon" if target is None else "noise multiplier",
        delta=delta,
        target=target,
        solution=None if target is None else noise,
    )


def _main_row(
    key: str,
    method: AccountingMethod,
    event: SampledGaussian,
    delta: float,
    target: float | None,
    priors: Sequence[float],
) -> AccountantRow:
    """The tight accountant's row, with risks. Raises ValueError if it has no result."""
    started = time.perf_counter()
    if target is not None:
        event = replace(event, noise_multiplier=method.noise_multiplier(event, target, delta))
    single = Ledger(events=(event,))
    guarantee = guarantee_of(single, delta, name=method.title, state=AssumptionState.ASSERTED, priors=priors)
    seconds = time.perf_counter() - started
    least = ledger.epsilon_floor(single, delta, precision=_REFUTING) if event.batches in _ATTAINED else 0.0
    guarantee = replace(guarantee, accountant=method.source, follows=guarantee.epsilon, floor=least or None)
    return AccountantRow(key=key, title=method.title, seconds=seconds, guarantee=guarantee)


def _row(
    key: str, method: AccountingMethod, event: SampledGaussian, delta: float, target: float | None, main: AccountantRow
) -> AccountantRow:
    """Another method's row, with what the tight accountant proves and refutes for the same noise."""
    started = time.perf_counter()
    try:
        if target is not None:
            event = replace(event, noise_multiplier=method.noise_multiplier(event, target, delta))
        epsilon = method.epsilon(event, delta) if target is None else target
    except (ValueError, OverflowError) as error:
        return AccountantRow(key=key, title=method.title, seconds=time.perf_counter() - started, failure=str(error))
    seconds = time.perf_counter() - started
    single, sound = Ledger(events=(event,)), method.sound(event, epsilon)
    follows, least = _proved_bounds(event, delta, epsilon, main)
    if sound:
        follows = min(follows, epsilon)
    status = Status.CONDITIONAL if sound else Status.REFUTED if least > epsilon * (1 + 1e-9) else Status.CLAIMED
    guarantee = Guarantee(
        name=method.title,
        epsilon=finite(epsilon),
        delta=delta,
        adjacency=adjacency_for(event.batches) if sound else Adjacency.UNSTATED,
        accountant=method.source,
        status=status,
        noise_multiplier=event.noise_multiplier,
        assumptions=assumptions_of(single, AssumptionState.ASSERTED),
        note="" if sound else method.caveat.format(batches=event.batches),
        follows=finite(follows),
        floor=least or None,
    )
    return AccountantRow(key=key, title=method.title, seconds=seconds, guarantee=guarantee)


def _proved_bounds(event: SampledGaussian, delta: float, epsilon: float, main: AccountantRow) -> tuple[float, float]:
    """The proved epsilon, and a lower bound on epsilon; the latter is 0 unless it might refute ``epsilon``."""
    assert main.guarantee is not None
    if event.noise_multiplier == main.guarantee.noise_multiplier:
        known = main.guarantee.epsilon
        return (math.inf if known is None else known), main.guarantee.floor or 0.0
    single = Ledger(events=(event,))
    follows = ledger.epsilon_bound(single, delta, precision=_COMPARING)
    refutable = event.batches in _ATTAINED and follows > epsilon
    return follows, ledger.epsilon_floor(single, delta, precision=_REFUTING) if refutable else 0.0


def _peer_methods() -> dict[str, AccountingMethod]:
    """The installed accountants of other projects."""
    methods = {}
    if peers.is_installed("opacus"):
        methods["opacus-prv"] = AccountingMethod(
            title="Opacus PRV",
            source="Opacus, after Gopi, Lee and Wutschitz 2021",
            epsilon=lambda event, delta: peers.opacus_prv_epsilon(
                event.noise_multiplier, event.sample_rate, event.steps, delta
            ),
            noise_multiplier=lambda event, epsilon, delta: peers.opacus_prv_noise_multiplier(
                epsilon, delta, event.sample_rate, event.steps
            ),
            sound_for=frozenset(),
            caveat="another program's number, not checked here beyond the columns beside it",
        )
    return methods
