"""From a ledger of events to numbers: the tight accountant that other rooms ask.

Every event type has a dominating pair (``pld.pairs``); a ledger of any of them composes in one privacy loss
distribution, once for each order of the neighbours. Where only Gaussians without sampling are left, the exact formula
answers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from privctl.accounting import gaussian, renyi
from privctl.accounting.passes import participations
from privctl.accounting.pld.compose import COARSE, FINE, compose
from privctl.accounting.pld.distribution import LossDistribution
from privctl.accounting.pld.extremes import floor_by_one_loss, largest_loss
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import (
    Atoms,
    Gaussian,
    GaussianMixture,
    Laplace,
    Reversed,
    Sampled,
    Symmetrized,
    randomized_response,
)
from privctl.accounting.pld.single_step import single_step_epsilon
from privctl.accounting.poisson_binomial import poisson_binomial
from privctl.domain.checks import fraction
from privctl.domain.events import (
    Batches,
    Event,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    SampledGaussian,
    SecretMixture,
)
from privctl.domain.guarantee import Adjacency

ACCOUNTANT = "privacy loss distribution (privctl), connect the dots"

__all__ = ["ACCOUNTANT", "COARSE", "FINE", "adjacency_of", "composed", "delta_bound", "epsilon_bound", "epsilon_floor"]


#: With less noise losses leave the floats' comfortable range; sampling is then ignored, which is sound.
_LEAST_NOISE = 1e-6
#: A sampling rate above this counts as 1.
_CERTAIN = 1 - 1e-9
#: Shifts beyond this have an epsilon that floats cannot hold.
_VACUOUS = 1e150
#: From this many steps on Renyi DP may do better than the grid.
_MANY = 10_000_000


def adjacency_of(ledger: Ledger) -> Adjacency:
    """The neighbours that the ledger's pairs speak of; raises ValueError where no single notion fits them all.

    Poisson batches: one record more or less. A secret: its records' contributions zeroed. Fixed-size batches: one
    record replaced. Shuffled passes: one record's contribution zeroed, which for Poisson batches is the same as its
    removal.
    """
    secrets = {event.probabilities for event in ledger.events if isinstance(event, SecretMixture)}
    if secrets and (len(secrets) > 1 or not all(isinstance(event, SecretMixture) for event in ledger.events)):
        raise ValueError("events of one secret, in the same records, compose only with each other")
    kinds = {event.batches for event in ledger.events if isinstance(event, SampledGaussian)}
    if Batches.FIXED_SIZE in kinds:
        if len(kinds) > 1 or not all(isinstance(event, SampledGaussian) for event in ledger.events):
            raise ValueError("fixed-size batches protect against replacing a record and compose only with their like")
        return Adjacency.REPLACE_ONE
    return Adjacency.ZERO_OUT if secrets or Batches.SHUFFLED in kinds else Adjacency.ADD_OR_REMOVE


def epsilon_bound(ledger: Ledger, delta: float, *, precision: float = FINE) -> float:
    """An epsilon that ``ledger`` certainly has at ``delta``; inf where none is finite.

    ``precision`` bounds, about, how much the grid may add, relatively. Raises ValueError for delta outside (0, 1) and
    for events that do not compose.
    """
    fraction("delta", delta)
    exact = gaussian_shift(ledger)
    if exact is not None:
        return gaussian.epsilon_at(delta, exact) if exact else 0.0
    ceiling = min(_unsampled_epsilon(ledger, delta), _long_epsilon(ledger, delta))
    if any(isinstance(event, SampledGaussian) and event.noise_multiplier < _LEAST_NOISE for event in ledger.events):
        return ceiling
    return min(ceiling, max(order_epsilons(ledger, delta, precision=precision)))


def epsilon_floor(ledger: Ledger, delta: float, *, precision: float = FINE) -> float:
    """An epsilon below which ``ledger`` certainly does not meet ``delta``: the other end of the enclosure.

    It is the dominating pair's: for the worst data and the strongest observer. Raises as ``epsilon_bound``.
    """
    fraction("delta", delta)
    if any(isinstance(event, SampledGaussian) and event.noise_multiplier < _LEAST_NOISE for event in ledger.events):
        return 0.0
    ledger = Ledger(events=tuple(_rarer(event) for event in ledger.events))
    exact = gaussian_shift(ledger)
    if exact is not None:
        return gaussian.epsilon_floor_at(delta, exact) if exact else 0.0
    once = _once(ledger, delta)
    if once is not None:
        return once[0]
    steps = _steps(ledger, lower=True)
    least = floor_by_one_loss(steps, math.log(delta))
    for order, most in enumerate(largest_loss(steps) for steps in _orders(steps)):
        if most > least:
            (found,) = composed(ledger, delta, precision=precision, lower=True, order=order)
            least = max(least, found.epsilon(delta))
    return least


def order_epsilons(
    ledger: Ledger, delta: float, *, precision: float = FINE, order: int | None = None
) -> tuple[float, ...]:
    """Epsilon in each order of the neighbours, or in ``order`` alone, where the ledger is not one Gaussian.

    An order whose largest possible loss is below what the first one found is not looked at more closely.
    """
    once = _once(ledger, delta)
    if once is not None:
        return (once[1],)
    found: list[float] = []
    orders = list(enumerate(_orders(_steps(ledger, lower=False))))
    for position, steps in orders if order is None else orders[order : order + 1]:
        most = largest_loss(steps)
        if most > max(found, default=0.0):
            (here,) = composed(ledger, delta, precision=precision, order=position)
            most = min(most, here.epsilon(delta))
        found.append(most)
    return tuple(found)


def _once(ledger: Ledger, delta: float) -> tuple[float, float] | None:
    """A floor and a bound of epsilon for one step alone, exact to rounding; None elsewhere."""
    steps = _steps(ledger, lower=False)
    adjacency_of(ledger)
    return single_step_epsilon(steps[0].pair, delta) if len(steps) == steps[0].count == 1 else None


def delta_bound(ledger: Ledger, epsilon: float, *, near: float) -> float:
    """A delta that ``ledger`` certainly has at ``epsilon``; sharpest where it is about ``near``."""
    exact = gaussian_shift(ledger)
    if exact is not None:
        return gaussian.delta_at(epsilon, exact)
    return max(math.exp(found.log_delta(epsilon)) for found in composed(ledger, near))


def gaussian_shift(ledger: Ledger) -> float | None:
    """Mu of the one Gaussian that the ledger equals, 0 where nothing touches the data; None where it is not one.

    Gaussian mechanisms compose into one of mu = sqrt(sum mu_i^2) (Dong, Roth and Su 2022, corollary 3.3), added here
    without overflow.
    """
    mus = []
    for event in ledger.events:
        if _unseen(event):
            continue
        mu = _plain_shift(event)
        if mu is None:
            return None
        mus.append(mu)
    return math.hypot(*mus)


def composed(
    ledger: Ledger, delta: float | None, *, precision: float = FINE, lower: bool = False, order: int | None = None
) -> tuple[LossDistribution, ...]:
    """The ledger's privacy loss in each order of the neighbours; one of them where both are alike.

    The first order is with the record against without it; ``order`` asks for one alone. ``delta`` None is for whole
    trade-off curves.
    """
    adjacency_of(ledger)
    steps = _steps(ledger, lower=lower)
    log_delta = None if delta is None else math.log(delta)
    orders = _orders(steps)
    chosen = orders if order is None else [orders[order]]
    return tuple(compose(steps, log_delta=log_delta, precision=precision, lower=lower) for steps in chosen)


def _orders(steps: list[RepeatedPair]) -> list[list[RepeatedPair]]:
    """The steps with the record against without it, and the reverse where that differs."""
    if all(isinstance(step.pair, Gaussian | Laplace | Atoms | Symmetrized) for step in steps):
        return [steps]
    return [steps, [RepeatedPair(Reversed(step.pair), step.count) for step in steps]]


def _unsampled_epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon as if every record took part in every step, where all events are Gaussians; inf elsewhere."""
    mus = []
    for event in ledger.events:
        if not isinstance(event, SampledGaussian):
            return math.inf
        sensitivity = 2 if event.batches is Batches.FIXED_SIZE else 1
        mus.append(_plain_shift(event) or sensitivity * math.sqrt(event.steps) / event.noise_multiplier)
    mu = math.hypot(*mus)
    return gaussian.epsilon_at(delta, mu) if mu < _VACUOUS else math.inf


def _long_epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon by Renyi DP where there are so many steps that the grid gets coarse; inf elsewhere."""
    if sum(event.steps for event in ledger.events) < _MANY or adjacency_of(ledger) is not Adjacency.ADD_OR_REMOVE:
        return math.inf
    return renyi.ledger_epsilon(ledger, delta)[0]


def _rarer(event: Event) -> Event:
    """The event with a rate that is all but 1 lowered to where it is not taken for 1: that only lowers its loss."""
    if isinstance(event, SampledGaussian) and _CERTAIN < event.sample_rate < 1:
        return replace(event, sample_rate=_CERTAIN)
    return event


def _steps(ledger: Ledger, *, lower: bool) -> list[RepeatedPair]:
    """One step a kind of event; Gaussians without sampling joined into one."""
    found: list[RepeatedPair] = []
    mus: list[float] = []
    for event in ledger.events:
        if _unseen(event):
            continue
        mu = _plain_shift(event)
        if mu is None:
            found.append(_step(event, lower=lower))
        else:
            mus.append(mu)
    if mus:
        found.append(RepeatedPair(Gaussian(math.hypot(*mus)), 1))
    return found


def _unseen(event: Event) -> bool:
    """No record ever takes part."""
    rates = event.probabilities if not hasattr(event, "sample_rate") else (event.sample_rate,)
    return not any(rates)


def _plain_shift(event: Event) -> float | None:
    """Mu of an event that is a Gaussian mechanism without sampling; None for others."""
    if not isinstance(event, SampledGaussian):
        return None
    mu = 1 / event.noise_multiplier
    if event.batches is Batches.SHUFFLED:
        # A record is in one batch a pass and the others do not depend on it, in whatever secret order.
        return mu * math.sqrt(participations(event.sample_rate, event.steps))
    if event.sample_rate > _CERTAIN:
        # Taking part a little more often only adds to the loss.
        return mu * math.sqrt(event.steps) * (2 if event.batches is Batches.FIXED_SIZE else 1)
    return None


def _step(event: Event, *, lower: bool) -> RepeatedPair:
    if isinstance(event, SampledGaussian):
        if event.batches is Batches.FIXED_SIZE:
            # Two batches that differ in whether they hold the record differ by two clipped contributions.
            return RepeatedPair(
                Symmetrized(Sampled(Gaussian(2 / event.noise_multiplier), event.sample_rate)), event.steps
            )
        return RepeatedPair(Sampled(Gaussian(1 / event.noise_multiplier), event.sample_rate), event.steps)
    if isinstance(event, LaplaceNoise):
        base = Laplace(event.scale)
        return RepeatedPair(Sampled(base, event.sample_rate) if event.sample_rate < 1 else base, event.steps)
    if isinstance(event, RandomizedResponse):
        bits = randomized_response(event.epsilon, event.bits)
        return RepeatedPair(Sampled(bits, event.sample_rate) if event.sample_rate < 1 else bits, event.steps)
    law = poisson_binomial(event.probabilities)
    mixture = GaussianMixture(
        shifts=tuple(float(k) for k in law.shifts),
        weights=tuple(float(w) for w in law.weights),
        stddev=event.noise_multiplier,
        # An infinite loss to an upper bound, none to a lower one.
        lost=0.0 if lower else law.tail_mass,
    )
    return RepeatedPair(mixture, event.steps)
