"""Random ledgers of every kind, and what others say of them: bounds of epsilon from above and from below."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import mpmath
import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.domain.events import Batches, Event, LaplaceNoise, Ledger, RandomizedResponse, SampledGaussian
from verify.recompute.ledger import NoBoundError, bounds, single_step_epsilon

KINDS = ("poisson", "poisson", "poisson", "once", "plain", "fixed", "shuffled", "laplace", "responses", "mix")
#: Below this delta dp-accounting's transforms are lost in rounding, and its numbers bound nothing.
_LEAST_DELTA = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A ledger, a delta and of which kind it is."""

    kind: str
    events: tuple[Event, ...]
    delta: float

    @property
    def ledger(self) -> Ledger:
        return Ledger(events=self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A case's bound and floor, what is unsound about them (empty: nothing), and the bound over dp-accounting's."""

    case: Case
    bound: float
    floor: float
    peers: Peers
    faults: tuple[str, ...]

    @property
    def looser(self) -> float:
        """By how much the bound is above dp-accounting's, relatively; below 0 where it is sharper."""
        return self.bound / self.peers.dp_upper - 1 if 0 < self.peers.dp_upper < math.inf else 0.0

    @property
    def width(self) -> float:
        """Bound over floor less 1, where the absolute gap is above 1e-6."""
        if self.bound - self.floor <= 1e-6:
            return 0.0
        return self.bound / self.floor - 1 if self.floor > 0 else math.inf


#: A float epsilon says no more than this, relatively.
_ROUNDING = 1e-9


def judge(case: Case) -> Judged:
    """Bound and floor held against everybody's."""
    bound, floor = epsilon_bound(case.ledger, case.delta), epsilon_floor(case.ledger, case.delta)
    peers = peers_of(case, bound)
    faults = [f"bound {bound!r} is below {n} {v!r}" for n, v in peers.below.items() if bound < v * (1 - _ROUNDING)]
    faults += [f"floor {floor!r} is above {n} {v!r}" for n, v in peers.above.items() if floor > v * (1 + _ROUNDING)]
    return Judged(case=case, bound=bound, floor=floor, peers=peers, faults=tuple(faults))


@dataclass(slots=True)
class Peers:
    """Bounds of epsilon by name: certain ones from below and above, and dp-accounting's own upper bound."""

    below: dict[str, float] = field(default_factory=dict)
    above: dict[str, float] = field(default_factory=dict)
    dp_upper: float = math.inf


def cases(count: int, seed: int) -> Iterator[Case]:
    """``count`` random ledgers; a seed always gives the same."""
    draw = random.Random(seed)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        yield Case(kind=kind, events=_events(kind, draw), delta=10 ** draw.uniform(-30, -2))


def _noise(draw: random.Random) -> float:
    return float(10 ** draw.uniform(-0.5, 1.3))


def _rate(draw: random.Random) -> float:
    return float(10 ** draw.uniform(-6, 0)) if draw.random() < 0.7 else draw.random()


def _steps(draw: random.Random, most: float = 4.0) -> int:
    return int(10 ** draw.uniform(0, most))


def _poisson(draw: random.Random) -> Event:
    return SampledGaussian(noise_multiplier=_noise(draw), sample_rate=_rate(draw), steps=_steps(draw))


def _once(draw: random.Random) -> Event:
    if draw.random() < 0.3:
        return LaplaceNoise(scale=_noise(draw), sample_rate=_rate(draw))
    return SampledGaussian(noise_multiplier=_noise(draw), sample_rate=_rate(draw), batches=draw.choice(_SINGLE))


def _plain(draw: random.Random) -> Event:
    return SampledGaussian(noise_multiplier=_noise(draw) * 3, steps=_steps(draw, 3.0))


def _fixed(draw: random.Random) -> Event:
    return SampledGaussian(
        noise_multiplier=2 * _noise(draw),
        sample_rate=_rate(draw),
        steps=_steps(draw, 3.5),
        batches=Batches.FIXED_SIZE,
    )


def _shuffled(draw: random.Random) -> Event:
    size = draw.randint(2, 10**6)
    return SampledGaussian(
        noise_multiplier=3 * _noise(draw),
        sample_rate=draw.randint(1, size) / size,
        steps=_steps(draw),
        batches=Batches.SHUFFLED,
    )


def _laplace(draw: random.Random) -> Event:
    rate = _rate(draw) if draw.random() < 0.7 else 1.0
    return LaplaceNoise(scale=_noise(draw) * 2, sample_rate=rate, steps=_steps(draw, 2.5))


def _responses(draw: random.Random) -> Event:
    return RandomizedResponse(
        epsilon=10 ** draw.uniform(-2, 1),
        bits=draw.choice([1, 1, 2, 8]),
        sample_rate=_rate(draw),
        steps=_steps(draw, 3.0),
    )


def _events(kind: str, draw: random.Random) -> tuple[Event, ...]:
    if kind == "mix":
        makers = [_poisson, _poisson, _laplace, _responses]
        return tuple(draw.choice(makers)(draw) for _ in range(draw.randint(2, 3)))
    return (_MADE[kind](draw),)


_MADE: dict[str, Callable[[random.Random], Event]] = {
    "poisson": _poisson,
    "once": _once,
    "plain": _plain,
    "fixed": _fixed,
    "shuffled": _shuffled,
    "laplace": _laplace,
    "responses": _responses,
}
_SINGLE = (Batches.POISSON, Batches.POISSON, Batches.FIXED_SIZE)


def peers_of(case: Case, found: float) -> Peers:
    """Everybody's bounds; ``found`` is about what epsilon is, for the choice of grids."""
    peers = Peers()
    exact = _exact(case)
    if exact is not None:
        peers.below["mpmath"] = peers.above["mpmath"] = exact
    try:
        certified = single_step_epsilon(case.ledger, case.delta)
        if certified is None:
            again = bounds(case.ledger, math.log(case.delta), 1e-3, found if 0 < found < math.inf else None)
            certified = again.epsilon(case.delta)
        peers.below["verify"], peers.above["verify"] = certified.lower, certified.upper
    except NoBoundError:
        pass
    if all(isinstance(event, SampledGaussian) for event in case.events):
        peers.above["rdp"] = _renyi(case)
    _add_loss_distributions(case, found, peers)
    return peers


def _exact(case: Case) -> float | None:
    """Epsilon by mpmath at 50 digits, for ledgers that are one Gaussian and for one sampled step; None elsewhere."""
    (event, *more) = case.events
    if more or not isinstance(event, SampledGaussian):
        return None
    visits, rate, reach = event.steps, event.sample_rate, 1
    if event.batches is Batches.SHUFFLED:
        shortest = math.floor(1 / rate * (1 + 1e-15))
        visits, rate = -(-event.steps // shortest), 1.0
    elif event.batches is Batches.FIXED_SIZE:
        reach = 2
    if rate < 1 and event.steps > 1:
        return None
    with mpmath.workdps(50):
        mu = reach * mpmath.sqrt(visits) / mpmath.mpf(event.noise_multiplier)
        share = mpmath.mpf(case.delta) / rate

        def excess(epsilon: mpmath.mpf) -> mpmath.mpf:
            return (
                mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu) - share
            )

        if excess(mpmath.mpf(0)) <= 0:
            return 0.0
        low, high = mpmath.mpf(0), mu * mu / 2 + mu * (3 + mpmath.sqrt(-2 * mpmath.log(share)))
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(mpmath.log1p(rate * mpmath.expm1(high)))


def _renyi(case: Case) -> float:
    fixed = any(isinstance(e, SampledGaussian) and e.batches is Batches.FIXED_SIZE for e in case.events)
    relation = NeighboringRelation.REPLACE_ONE if fixed else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = RdpAccountant(neighboring_relation=relation)
    for event in case.events:
        assert isinstance(event, SampledGaussian)
        if event.batches is Batches.SHUFFLED:
            return math.inf
        if fixed:
            if event.sample_rate < 1e-3:
                return math.inf  # no data set of a size that is handy
            size = 10**7
            # A batch of no fewer records than the rate asks for; a record replaced moves its sum by two clip norms.
            inner = dp_event.SampledWithoutReplacementDpEvent(
                size, math.ceil(event.sample_rate * size), dp_event.GaussianDpEvent(event.noise_multiplier / 2)
            )
        else:
            inner = dp_event.PoissonSampledDpEvent(event.sample_rate, dp_event.GaussianDpEvent(event.noise_multiplier))
        accountant.compose(inner, event.steps)
    return float(accountant.get_epsilon(case.delta))


def _add_loss_distributions(case: Case, found: float, peers: Peers) -> None:
    if case.delta < _LEAST_DELTA or case.kind in ("fixed", "shuffled"):
        return
    if any(isinstance(e, SampledGaussian) and e.batches is not Batches.POISSON for e in case.events):
        return
    steep = max((1 / e.noise_multiplier**2 for e in case.events if isinstance(e, SampledGaussian)), default=1.0)
    interval = max(5e-4 * min(found, 20.0), 2e-5 * (1 + steep))
    for pessimistic in (True, False):
        whole = None
        for event in case.events:
            one = _loss_distribution(event, interval, pessimistic=pessimistic).self_compose(event.steps)
            whole = one if whole is None else whole.compose(one)
        assert whole is not None
        epsilon = float(whole.get_epsilon_for_delta(case.delta))
        if pessimistic:
            peers.dp_upper = peers.above["dp-accounting"] = epsilon
        elif not any(isinstance(event, RandomizedResponse) for event in case.events):
            # Its optimistic bounds of randomized response exceed the truth.
            peers.below["dp-accounting"] = epsilon


def _loss_distribution(event: Event, interval: float, *, pessimistic: bool) -> dp_pld.PrivacyLossDistribution:
    if isinstance(event, SampledGaussian):
        return dp_pld.from_gaussian_mechanism(
            event.noise_multiplier,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=interval,
            sampling_prob=event.sample_rate,
        )
    if isinstance(event, LaplaceNoise):
        return dp_pld.from_laplace_mechanism(
            event.scale,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=interval,
            sampling_prob=event.sample_rate,
        )
    assert isinstance(event, RandomizedResponse)
    return _of_responses(event, interval, pessimistic=pessimistic)


def _of_responses(event: RandomizedResponse, interval: float, *, pessimistic: bool) -> dp_pld.PrivacyLossDistribution:
    kept = np.arange(event.bits + 1)
    choose = np.array([math.log(math.comb(event.bits, int(k))) for k in kept])
    yes, no = -math.log1p(math.exp(-event.epsilon)), -event.epsilon - math.log1p(math.exp(-event.epsilon))
    certain = choose + kept * yes + (event.bits - kept) * no
    without = certain[::-1]
    rate = event.sample_rate
    drawn = certain if rate == 1 else np.logaddexp(math.log1p(-rate) + without, math.log(rate) + certain)
    upper, lower = (dict(enumerate(logs.tolist())) for logs in (drawn, without))
    return dp_pld.from_two_probability_mass_functions(
        lower,
        upper,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=interval,
        symmetric=False,
    )
