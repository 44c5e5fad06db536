"""Plans for mechanisms other than the sampled Gaussian: ledgers of events, searches, published signs, and secrets."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from privctl.accounting import calibrate as calibration
from privctl.accounting import renyi, sign_bits
from privctl.accounting.events import ROWS
from privctl.accounting.guarantees import assumptions_of, finite, guarantee_of
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.runs_law import name_of
from privctl.accounting.secrets import fano as secrets
from privctl.domain.events import (
    Batches,
    BestOfRuns,
    Event,
    EventOption,
    Ledger,
    SampledGaussian,
    SecretMixture,
    SignBits,
)
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
from privctl.plan.accountants import AccountantRow, BudgetPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSearch:
    """A search for the least noise with which an event of ``kind`` meets ``target``; ``facts`` are its other fields."""

    kind: type[Event]
    facts: Mapping[str, Any]
    target: float

    def event(self, delta: float) -> Event:
        """The event found. Raises ValueError if no noise meets the target."""
        noise = calibration.noise_multiplier_for(
            self.target, delta, lambda noise: Ledger(events=(self._event_at(noise),))
        )
        return self._event_at(noise)

    def _event_at(self, noise: float) -> Event:
        setting = ROWS[self.kind].setting
        assert setting is not None
        return self.kind(**self.facts, **{setting.field: setting.of_noise(noise)})


#: The option that sets the noise of all Gaussian mechanisms.
NOISE_MULTIPLIER = EventOption(
    name="noise_multiplier", help="Noise standard deviation / clip norm.", field="noise_multiplier"
)


def setting_of(kind: type[Event]) -> EventOption:
    """The option that sets the noise of events of ``kind``; raises ValueError if there is none."""
    setting = ROWS[kind].setting if kind in ROWS else None
    if setting is not None and setting.field == NOISE_MULTIPLIER.field:
        return NOISE_MULTIPLIER
    for option in kind.options:
        if setting is not None and option.field == setting.field:
            return option
    raise ValueError(f"{kind.mechanism} is not planned by options; put its events into a --ledger file")


def plan_ledger(
    events: Sequence[Event],
    delta: float,
    *,
    search: NoiseSearch | None = None,
    priors: Sequence[float] = (),
    remarks: tuple[str, ...] = (),
) -> BudgetPlan:
    """The plan for any events, or for the one that ``search`` finds, by the tight accountant and by Renyi DP."""
    started = time.perf_counter()
    solved, solution = "epsilon", None
    if search is not None:
        option, event = setting_of(search.kind), search.event(delta)
        events = (event,)
        solved, solution = option.name.replace("_", " "), getattr(event, option.field)
    whole = Ledger(events=tuple(events))
    tight = guarantee_of(whole, delta, name="privacy loss distribution", state=AssumptionState.ASSERTED, priors=priors)
    tight = replace(tight, follows=tight.epsilon)
    main = "pld"
    rows = [AccountantRow(key="pld", title=tight.name, seconds=time.perf_counter() - started, guarantee=tight)]
    started = time.perf_counter()
    try:
        if tight.unit is PrivacyUnit.SECRET:
            raise ValueError("for a secret's records it is known in one order of the neighbours only")
        if delta == 0:
            raise ValueError("at delta 0 only the divergence of infinite order counts, which is the largest loss")
        epsilon = renyi.ledger_epsilon(whole, delta)[0]
    except ValueError as error:
        rows.append(
            AccountantRow(key="rdp", title="Renyi DP", seconds=time.perf_counter() - started, failure=str(error)),
        )
    else:
        seconds = time.perf_counter() - started
        by_renyi = replace(
            tight,
            name="Renyi DP",
            epsilon=finite(epsilon),
            follows=finite(epsilon) if tight.epsilon is None else tight.epsilon,
            accountant="Renyi divergences, Canonne, Kamath and Steinke 2020",
            risks=(),
        )
        rows.append(
            AccountantRow(key="rdp", title="Renyi DP", seconds=seconds, guarantee=by_renyi),
        )
        if tight.epsilon is None and by_renyi.epsilon is not None:
            main, rows[0] = "rdp", replace(rows[0], guarantee=replace(tight, risks=()))
    return BudgetPlan(
        mechanism=whole,
        rows=tuple(rows),
        main=main,
        solved=solved,
        delta=delta,
        target=None if search is None else search.target,
        solution=solution,
        remarks=remarks,
    )


def search_cost(event: BestOfRuns, delta: float) -> str:
    """A sentence that compares the epsilon of releasing the best of the event's runs with that of one run."""
    run = SampledGaussian(noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate, steps=event.run_steps)
    alone, whole = (epsilon_bound(Ledger(events=(single_event,)), delta) for single_event in (run, event))
    if math.isinf(whole):
        whole = renyi.ledger_epsilon(Ledger(events=(event,)), delta)[0]
    return (
        f"one run alone has epsilon {alone:.4g} at delta {delta:g}; releasing the best of a random number of them, "
        f"{event.mean_runs:g} on average ({name_of(event.shape)} law), raises it to {whole:.4g}"
    )


def plan_search(
    event: BestOfRuns, delta: float, *, target: float | None = None, priors: Sequence[float] = ()
) -> BudgetPlan:
    """The plan for releasing the best of the event's runs; with a ``target`` epsilon, with the least noise for it.

    Raises ValueError if no noise meets the target.
    """
    if target is not None:
        noise = calibration.noise_multiplier_for(
            target, delta, lambda noise: Ledger(events=(replace(event, noise_multiplier=noise),))
        )
        event = replace(event, noise_multiplier=noise)
    remark = search_cost(event, delta)
    plan = plan_ledger([event], delta, priors=priors, remarks=(remark[:1].upper() + remark[1:],))
    if target is None:
        return plan
    return replace(plan, solved="noise multiplier", target=target, solution=event.noise_multiplier)


def plan_sign_bits(event: SignBits, delta: float, *, target: float | None = None) -> BudgetPlan:
    """The plan for FERRET as published: mutual information, and the smallest delta of any (epsilon, delta) bound."""
    started = time.perf_counter()
    masks = Assumption(
        name="public masks",
        statement="which groups fire, and the random directions, do not depend on the data",
        state=AssumptionState.ASSERTED,
    )
    average = sign_bits.average_case(event, (masks,))
    rows = [AccountantRow(key="mi-dp", title=average.name, seconds=time.perf_counter() - started, guarantee=average)]
    for key, batches in (("worst-poisson", Batches.POISSON), ("worst-shuffled", Batches.SHUFFLED)):
        started = time.perf_counter()
        refuted, worst = sign_bits.worst_case(event, delta, batches), sign_bits.worst_case_delta(event, batches)
        seconds = time.perf_counter() - started
        if refuted is not None:
            rows.append(AccountantRow(key=key, title=refuted.name, seconds=seconds, guarantee=refuted))
            continue
        title = f"(epsilon, {delta:g})-DP, {'Poisson' if batches is Batches.POISSON else batches} batches"
        reason = f"not refuted: one record shows itself with probability {worst:.3g} at most, and nothing proves it"
        rows.append(AccountantRow(key=key, title=title, seconds=seconds, failure=reason))
    return BudgetPlan(
        mechanism=event,
        rows=tuple(rows),
        main="mi-dp",
        solved="epsilon" if target is None else "fire probability",
        delta=delta,
        target=target,
        solution=None if target is None else event.fire_probability,
    )


def plan_secret(event: SecretMixture, delta: float, prior: float, *, posterior: float | None = None) -> BudgetPlan:
    """The plan for a secret in several records: two bounds on the probability of guessing it from the output.

    With ``posterior``, the noise is the least that keeps the first of these bounds at or below it.
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
        status=Status.CONDITIONAL,
        noise_multiplier=event.noise_multiplier,
        assumptions=assumptions_of(Ledger(events=(event,)), AssumptionState.ASSERTED),
        note="epsilon is the information about the secret, in nats"
        + ("" if posterior is None else "; the noise was chosen by this bound"),
        risks=(
            Risk(
                measure=RiskMeasure.POSTERIOR,
                bound=min(1.0, secrets.posterior(information, prior)) if math.isfinite(information) else 1.0,
                at=prior,
            ),
        ),
    )
    rows = [AccountantRow(key="fano", title=by_fano.name, seconds=time.perf_counter() - started, guarantee=by_fano)]
    started = time.perf_counter()
    whole = Ledger(events=(event,))
    by_whole = secrets.curve_posterior(event, prior)
    by_curve = guarantee_of(whole, delta, name="secret protection, trade-off curve", state=AssumptionState.ASSERTED)
    by_curve = replace(
        by_curve,
        notion=Notion.SECRET_PROTECTION,
        risks=(Risk(measure=RiskMeasure.POSTERIOR, bound=by_whole, at=prior),),
        note="epsilon and delta are for the secret's presence; the posterior is from the whole curve",
    )
    rows.append(
        AccountantRow(key="curve", title=by_curve.name, seconds=time.perf_counter() - started, guarantee=by_curve)
    )
    return BudgetPlan(
        mechanism=whole,
        rows=tuple(rows),
        main="fano",
        solved="posterior" if posterior is None else "noise multiplier",
        delta=delta,
        target=posterior,
        solution=None if posterior is None else event.noise_multiplier,
    )
