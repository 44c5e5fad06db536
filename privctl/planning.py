"""Planning a private run: one mechanism, every way of accounting for it, and what it leaves an attacker.

The result is a ``Plan``: rows to show and guarantees to report. Nothing here touches data or files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from privctl import peers
from privctl.accounting import calibration, ledger, mutual_information, renyi, risk, secrets
from privctl.accounting.guarantees import PLANNED, assumptions_of, finite, guarantee_of
from privctl.accounting.methods import Method, adjacency_for, methods_for
from privctl.domain.events import Batches, Event, Ledger, SampledGaussian, SecretMixture, SignBits
from privctl.domain.guarantee import (
    Adjacency,
    Assumption,
    AssumptionState,
    Guarantee,
    Notion,
    PrivacyUnit,
    Risk,
    RiskMeasure,
    Status,
)

#: Relative precision of the epsilons shown beside other methods' numbers.
_BESIDE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of accounting: its guarantee, how long it took, or why it has no answer."""

    key: str
    title: str
    seconds: float
    guarantee: Guarantee | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked about, and every answer. ``main`` is the row to rely on; ``solved`` names what was looked for."""

    mechanism: Ledger | SignBits
    rows: tuple[Row, ...]
    main: str
    solved: str
    delta: float
    target: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def guarantee(self) -> Guarantee:
        """The main row's; raises ValueError with its reason where it has none."""
        row = next(row for row in self.rows if row.key == self.main)
        if row.guarantee is None:
            raise ValueError(row.failure)
        return row.guarantee


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
) -> Plan:
    """Every method for one sampled Gaussian: epsilon for its noise, or with ``target`` the noise for that epsilon.

    ``only`` names rows to compute (all); ``note`` hears of each before it starts. The mechanism of the result has the
    main row's noise. Raises ValueError where the main row has no answer.
    """
    table = dict(methods_for(event.batches))
    if with_peers:
        table |= _peer_methods()
    main = "tight" if event.batches is not Batches.POISSON else "pld"
    chosen = [key for key in table if not only or key in only or key == main]
    rows = []
    for key in chosen:
        note(table[key].title)
        rows.append(_row(key, table[key], event, delta, target, priors if key == main else None))
    found = next(row for row in rows if row.key == main)
    if found.guarantee is None:
        raise ValueError(found.failure)
    noise = found.guarantee.noise_multiplier or event.noise_multiplier
    return Plan(
        mechanism=Ledger(events=(replace(event, noise_multiplier=noise),)),
        rows=tuple(rows),
        main=main,
        solved="epsilon" if target is None else "noise multiplier",
        delta=delta,
        target=target,
    )


def _row(
    key: str,
    method: Method,
    event: SampledGaussian,
    delta: float,
    target: float | None,
    priors: Sequence[float] | None,
) -> Row:
    started = time.perf_counter()
    try:
        if target is not None:
            event = replace(event, noise_multiplier=method.noise_multiplier(event, target, delta))
        epsilon = method.epsilon(event, delta) if target is None or priors is not None else target
    except (ValueError, OverflowError) as error:
        return Row(key=key, title=method.title, seconds=time.perf_counter() - started, failure=str(error))
    seconds = time.perf_counter() - started
    guarantee = _stated(method, event, delta, epsilon, priors)
    return Row(key=key, title=method.title, seconds=seconds, guarantee=guarantee)


def _stated(
    method: Method, event: SampledGaussian, delta: float, epsilon: float, priors: Sequence[float] | None
) -> Guarantee:
    """The method's number beside what the tight accountant proves, and disproves, for the same noise."""
    here = Ledger(events=(event,))
    sound = event.batches in method.sound_for
    main = priors is not None
    follows = epsilon if main else ledger.epsilon_bound(here, delta, precision=_BESIDE)
    # Only for Poisson batches is the tight accountant's pair known to be met by real data.
    least = 0.0
    if event.batches is Batches.POISSON and (main or not sound):
        least = ledger.epsilon_floor(here, delta, precision=_BESIDE)
    status = Status.CONDITIONAL if sound else Status.REFUTED if least > epsilon * (1 + 1e-9) else Status.CLAIMED
    return Guarantee(
        name=method.title,
        epsilon=finite(epsilon),
        delta=delta,
        adjacency=adjacency_for(event.batches) if sound else Adjacency.UNSTATED,
        accountant=method.source,
        status=status,
        noise_multiplier=event.noise_multiplier,
        assumptions=assumptions_of(here, PLANNED),
        note="" if sound else method.caveat.format(batches=event.batches),
        risks=risk.risks(risk.trade_off(here), priors) if priors is not None else (),
        follows=finite(follows),
        floor=least or None,
    )


def _peer_methods() -> dict[str, Method]:
    """Other people's accountants that are installed."""
    found = {}
    if peers.installed("opacus"):
        found["opacus-prv"] = Method(
            title="Opacus PRV",
            source="Opacus, after Gopi, Lee and Wutschitz 2021",
            epsilon=lambda event, delta: peers.opacus_prv_epsilon(
                event.noise_multiplier, event.sample_rate, event.steps, delta
            ),
            noise_multiplier=lambda event, epsilon, delta: peers.opacus_prv_noise_multiplier(
                epsilon, delta, event.sample_rate, event.steps
            ),
            sound_for=frozenset({Batches.POISSON}),
            caveat="it takes its gain from Poisson batches; for {batches} batches nothing proves it",
        )
    return found


def plan_ledger(
    events: Sequence[Event],
    delta: float,
    *,
    target: float | None = None,
    solve: Callable[[float], Event] | None = None,
    solved: str = "epsilon",
    priors: Sequence[float] = (),
) -> Plan:
    """Any events by the tight accountant and by Renyi DP.

    With ``target``, one event is ``solve(noise)``, where noise is what makes it more private, and the least that meets
    the target is found first.
    """
    started = time.perf_counter()
    whole = Ledger(events=tuple(events))
    if target is not None and solve is not None:
        noise = calibration.noise_multiplier_for(target, delta, lambda noise: Ledger(events=(solve(noise),)))
        whole = Ledger(events=(solve(noise),))
    tight = guarantee_of(whole, delta, name="privacy loss distribution", standing=PLANNED, priors=priors)
    rows = [Row(key="pld", title=tight.name, seconds=time.perf_counter() - started, guarantee=tight)]
    started = time.perf_counter()
    try:
        epsilon = renyi.ledger_epsilon(whole, delta)[0]
    except ValueError as error:
        rows.append(
            Row(key="rdp", title="Renyi DP", seconds=time.perf_counter() - started, failure=str(error)),
        )
    else:
        seconds = time.perf_counter() - started
        by_renyi = replace(tight, name="Renyi DP", epsilon=finite(epsilon), accountant="Renyi DP", risks=())
        rows.append(
            Row(key="rdp", title="Renyi DP", seconds=seconds, guarantee=replace(by_renyi, follows=tight.epsilon)),
        )
    return Plan(mechanism=whole, rows=tuple(rows), main="pld", solved=solved, delta=delta, target=target)


def plan_sign_bits(event: SignBits, delta: float) -> Plan:
    """FERRET as published: mutual information, what that implies, and the delta that every (epsilon, delta) has."""
    started = time.perf_counter()
    nats = mutual_information.nats(event)
    variation = mutual_information.total_variation(nats)
    average = Guarantee(
        name="mutual information (MI-DP)",
        epsilon=nats,
        delta=0.0,
        notion=Notion.MUTUAL_INFORMATION,
        adjacency=Adjacency.REPLACE_ONE,
        accountant="Cuff and Yu 2016, one bit a fired group and step, in nats",
        status=Status.CONDITIONAL,
        assumptions=(
            Assumption(
                name="public masks",
                statement="which groups fire, and the random directions, do not depend on the data",
                state=AssumptionState.ASSERTED,
            ),
        ),
        note="an average over the data, not a worst case; from ln 2 = 0.693 nats on it rules nothing out",
        risks=(
            Risk(measure=RiskMeasure.ADVANTAGE, bound=variation),
            Risk(measure=RiskMeasure.AUC, bound=mutual_information.auc(nats)),
        ),
    )
    rows = [Row(key="mi-dp", title=average.name, seconds=time.perf_counter() - started, guarantee=average)]
    for key, batches, worst in (
        ("worst-poisson", "Poisson", mutual_information.worst_case_delta_poisson(event)),
        ("worst-shuffled", "shuffled", mutual_information.worst_case_delta_shuffled(event)),
    ):
        started = time.perf_counter()
        refuted = Guarantee(
            name=f"(epsilon, {delta:g})-DP, {batches} batches",
            epsilon=None,
            delta=delta,
            adjacency=Adjacency.REPLACE_ONE,
            accountant="one record that decides the sign of its batch",
            status=Status.REFUTED if worst > delta else Status.CLAIMED,
            note=f"no epsilon, however large, holds with a delta below {worst:.6g}",
        )
        rows.append(Row(key=key, title=refuted.name, seconds=time.perf_counter() - started, guarantee=refuted))
    return Plan(mechanism=event, rows=tuple(rows), main="mi-dp", solved="epsilon", delta=delta)


def plan_secret(event: SecretMixture, delta: float, prior: float, *, posterior: float | None = None) -> Plan:
    """A secret in several records: the chance of naming it from the outcome, by two bounds.

    With ``posterior`` the least noise for which the first bound stays below it is found first.
    """
    started = time.perf_counter()
    if posterior is not None:
        noise = secrets.noise_multiplier_for(event.probabilities, event.steps, prior, posterior)
        event = replace(event, noise_multiplier=noise)
    information = secrets.information(event)
    by_fano = Guarantee(
        name="secret protection, mutual information",
        epsilon=finite(information),
        delta=0.0,
        notion=Notion.SECRET_PROTECTION,
        unit=PrivacyUnit.SECRET,
        adjacency=Adjacency.ZERO_OUT,
        accountant="KL divergence from the secret's absence, exact integral; Fano's inequality",
        status=PLANNED.status,
        noise_multiplier=event.noise_multiplier,
        assumptions=assumptions_of(Ledger(events=(event,)), PLANNED),
        note="epsilon is the information about the secret, in nats",
        risks=(
            Risk(
                measure=RiskMeasure.POSTERIOR,
                bound=min(1.0, secrets.posterior(information, prior)) if math.isfinite(information) else 1.0,
                at=prior,
            ),
        ),
    )
    rows = [Row(key="fano", title=by_fano.name, seconds=time.perf_counter() - started, guarantee=by_fano)]
    started = time.perf_counter()
    whole = Ledger(events=(event,))
    # The reference form needs one order only: the secret there, against its absence.
    curve = risk.Lines(*ledger.composed(whole, None, order=0)[0].profile())
    by_curve = guarantee_of(whole, delta, name="secret protection, trade-off curve", standing=PLANNED)
    by_curve = replace(
        by_curve,
        notion=Notion.SECRET_PROTECTION,
        risks=(Risk(measure=RiskMeasure.POSTERIOR, bound=curve.true_positive_rate(prior), at=prior),),
        note="epsilon and delta are for the secret's presence; the posterior is from the whole curve",
    )
    rows.append(Row(key="curve", title=by_curve.name, seconds=time.perf_counter() - started, guarantee=by_curve))
    return Plan(mechanism=whole, rows=tuple(rows), main="fano", solved="posterior", delta=delta, target=posterior)
