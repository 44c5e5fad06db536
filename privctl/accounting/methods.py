"""All accounting methods for a sampled Gaussian: theorems, accountants, published formulas, and an estimate.

Each is a row of ``METHODS``: epsilon for given noise, noise for a given epsilon, and the batches for which it is a
bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from privctl.accounting import calibrate as calibration
from privctl.accounting import composition, ledger, published, renyi
from privctl.accounting.brackets import costly_root
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.guarantee import Adjacency

_POISSON = frozenset({Batches.POISSON})
_SAMPLING = "proved for Poisson batches and the removal of a record, not for {batches} batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingMethod:
    """One accounting method.

    ``epsilon(event, delta)`` may be inf; ``noise_multiplier(event, epsilon, delta)`` ignores the event's own noise.
    Both raise ValueError if the method has no result. ``sound_for`` lists the batches for which epsilon is a bound, and
    ``holds(event, epsilon)`` is a further condition under which it is one; ``caveat`` says why it is not otherwise.
    """

    title: str
    source: str
    epsilon: Callable[[SampledGaussian, float], float]
    noise_multiplier: Callable[[SampledGaussian, float, float], float]
    sound_for: frozenset[Batches]
    caveat: str = ""
    holds: Callable[[SampledGaussian, float], bool] = lambda event, epsilon: False

    def sound(self, event: SampledGaussian, epsilon: float) -> bool:
        """Whether ``epsilon``, found by this method, is a bound for ``event``."""
        # If every record takes part in every step, shuffled and Poisson batches are the same.
        full = event.sample_rate == 1 and event.batches is Batches.SHUFFLED and Batches.POISSON in self.sound_for
        return event.batches in self.sound_for or full or self.holds(event, epsilon)


def adjacency_for(batches: Batches) -> Adjacency:
    """The adjacency for which bounds on these batches hold."""
    return SampledGaussian(noise_multiplier=1, batches=batches).adjacency


def tight_epsilon(event: SampledGaussian, delta: float) -> float:
    """The tight accountant's bound on epsilon."""
    return ledger.epsilon_bound(Ledger(events=(event,)), delta)


def tight_noise_multiplier(event: SampledGaussian, epsilon: float, delta: float) -> float:
    """The least noise multiplier by the tight accountant."""
    return calibration.noise_multiplier_for(epsilon, delta, lambda noise: _with_noise(event, noise))


def _with_noise(event: SampledGaussian, noise: float) -> Ledger:
    return Ledger(events=(replace(event, noise_multiplier=noise),))


def _per_sensitivity(noise: float, event: SampledGaussian) -> float:
    """Noise relative to sensitivity: in fixed-size batches a record replaces another, so it is twice the clip norm."""
    return noise / 2 if event.batches is Batches.FIXED_SIZE else noise


def _theorem(
    title: str,
    source: str,
    epsilon: Callable[[float, float, int, float], float],
    noise: Callable[[float, float, int, float], float],
) -> AccountingMethod:
    """The method of a composition theorem, from its functions of (noise or epsilon, rate, steps, delta)."""

    def epsilon_of(event: SampledGaussian, delta: float) -> float:
        return epsilon(_per_sensitivity(event.noise_multiplier, event), event.sample_rate, event.steps, delta)

    def noise_for(event: SampledGaussian, target: float, delta: float) -> float:
        noise_multiplier = noise(target, event.sample_rate, event.steps, delta)
        return 2 * noise_multiplier if event.batches is Batches.FIXED_SIZE else noise_multiplier

    return AccountingMethod(
        title=title,
        source=source,
        epsilon=epsilon_of,
        noise_multiplier=noise_for,
        sound_for=frozenset({Batches.POISSON, Batches.FIXED_SIZE}),
        caveat=_SAMPLING,
    )


def _as_published(
    title: str,
    source: str,
    caveat: str,
    epsilon: Callable[[float, float, int, float], float],
    noise: Callable[[float, float, int, float], float],
) -> AccountingMethod:
    """A published formula, from its functions of (noise or epsilon, rate, steps, delta); a bound for no batches."""
    return AccountingMethod(
        title=title,
        source=source,
        epsilon=lambda event, delta: epsilon(event.noise_multiplier, event.sample_rate, event.steps, delta),
        noise_multiplier=lambda event, target, delta: noise(target, event.sample_rate, event.steps, delta),
        sound_for=frozenset(),
        caveat=caveat,
    )


def _tight(title: str, source: str) -> AccountingMethod:
    """The tight accountant, which is sound for the batches of each event."""
    return AccountingMethod(
        title=title,
        source=source,
        epsilon=tight_epsilon,
        noise_multiplier=tight_noise_multiplier,
        sound_for=frozenset(Batches),
    )


def _renyi_epsilon(event: SampledGaussian, delta: float) -> float:
    return renyi.ledger_epsilon(Ledger(events=(replace(event, batches=Batches.POISSON),)), delta)[0]


def _renyi_noise(event: SampledGaussian, epsilon: float, delta: float) -> float:
    return least_noise(lambda noise: _renyi_epsilon(replace(event, noise_multiplier=noise), delta), epsilon)


def _poisson_pld_epsilon(event: SampledGaussian, delta: float) -> float:
    return tight_epsilon(replace(event, batches=Batches.POISSON), delta)


def _poisson_pld_noise(event: SampledGaussian, epsilon: float, delta: float) -> float:
    return tight_noise_multiplier(replace(event, batches=Batches.POISSON), epsilon, delta)


def least_noise(epsilon_of: Callable[[float], float], epsilon: float) -> float:
    """The least noise multiplier with ``epsilon_of(noise) <= epsilon``, to 1e-6 relative, by the secant method.

    Raises ValueError if it is not between ``calibration.LEAST`` and ``calibration.MOST``.
    """
    low, high = math.log(calibration.LEAST), math.log(calibration.MOST)
    if epsilon_of(math.exp(high)) > epsilon:
        raise ValueError(f"no noise multiplier up to {calibration.MOST:g} meets epsilon {epsilon}")
    if epsilon_of(math.exp(low)) <= epsilon:
        raise ValueError(f"epsilon {epsilon} is met with a noise multiplier below {calibration.LEAST}")

    def excess(x: float) -> float:
        reached = epsilon_of(math.exp(x))
        # If the quotient rounds to 1, the difference has the right sign.
        return math.log(reached / epsilon) or reached - epsilon if reached > 0 else -math.inf

    return math.exp(costly_root(excess, 0.0, low, high, tolerance=1e-6, stride=0.5))


#: Key -> method, in the order of the table. For batches that are not Poisson, ``tight`` is added from ``TIGHT``.
METHODS: dict[str, AccountingMethod] = {
    "naive": _theorem(
        "basic (naive) composition",
        "Dwork et al. 2006, amplified by sampling",
        composition.naive_epsilon,
        composition.naive_noise_multiplier,
    ),
    "advanced": _theorem(
        "advanced composition",
        "Dwork, Rothblum and Vadhan 2010, the whole formula",
        composition.advanced_epsilon,
        composition.advanced_noise_multiplier,
    ),
    "optimal": _theorem(
        "optimal composition",
        "Kairouz, Oh and Viswanath 2015",
        composition.optimal_epsilon,
        composition.optimal_noise_multiplier,
    ),
    "poster-naive": replace(
        _as_published(
            "poster: naive",
            "DP fine-tuning poster, sum over rate * steps participations, classical Gaussian",
            "it counts participations on average, and its Gaussian formula is proved for epsilon below 1 each",
            published.poster_naive_epsilon,
            published.poster_naive_noise_multiplier,
        ),
        holds=lambda event, epsilon: (
            event.batches is Batches.SHUFFLED and published.poster_naive_holds(epsilon, event.sample_rate, event.steps)
        ),
    ),
    "poster-advanced": _as_published(
        "poster: advanced",
        "DP fine-tuning poster, simplification as printed, with the ratio inverted",
        "as printed it lets every participation spend more than the whole budget",
        published.poster_advanced_epsilon_as_printed,
        published.poster_advanced_noise_multiplier_as_printed,
    ),
    "poster-advanced-corrected": _as_published(
        "poster: advanced, corrected",
        "DP fine-tuning poster, simplification with the ratio corrected: epsilon = 2 eps' sqrt(2 k ln 1/delta')",
        "it drops the term k eps' (e^eps' - 1) and counts participations on average",
        published.poster_advanced_epsilon,
        published.poster_advanced_noise_multiplier,
    ),
    "rdp": AccountingMethod(
        title="moments / Renyi DP",
        source="Abadi et al. 2016; Mironov, Talwar and Zhang 2019",
        epsilon=_renyi_epsilon,
        noise_multiplier=_renyi_noise,
        sound_for=_POISSON,
        caveat=_SAMPLING,
    ),
    "pld": AccountingMethod(
        title="privacy loss distribution",
        source="Koskela et al. 2020; Doroshenko et al. 2022",
        epsilon=_poisson_pld_epsilon,
        noise_multiplier=_poisson_pld_noise,
        sound_for=_POISSON,
        caveat=_SAMPLING,
    ),
    "gdp-clt": _as_published(
        "GDP: estimate, not a bound",
        "Bu, Dong, Long and Su 2020",
        "the limit of ever more steps, an estimate that may lie on either side of the truth",
        published.clt_epsilon,
        published.clt_noise_multiplier,
    ),
}

#: The tight accountant for batches that are not Poisson.
TIGHT: dict[Batches, AccountingMethod] = {
    Batches.SHUFFLED: _tight("passes, not amplified", "one exact Gaussian a pass; no gain from the order"),
    Batches.FIXED_SIZE: _tight("drawing a fixed number", "Dong, Roth and Su 2022, theorem 4.2"),
    Batches.BALLS_AND_BINS: _tight(
        "one random step a pass",
        "Chua et al. 2025, Feldman and Shenfeld 2025; the whole distribution, bounded in the convex order",
    ),
}


def methods_for(batches: Batches) -> dict[str, AccountingMethod]:
    """The methods for these batches, including the tight accountant under the key ``pld`` or ``tight``."""
    return {**METHODS, "tight": TIGHT[batches]} if batches in TIGHT else METHODS
