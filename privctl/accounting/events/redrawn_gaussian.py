"""Gaussian noise on batches drawn with replacement.

Let J be the number of times that the record is drawn, binomial with weights w_j, and O the records in its places if it
does not exist.

- Add or remove: without the record, all places hold other records. Given O, the record changes the batch's sum by the
  sum of g - O over J places, at most 2 J clip norms, so the pair is sum_j w_j N(2 j, sigma^2) against N(0, sigma^2)
  (Choquette-Choo, Ganesh, Steinke and Thakurta 2023, lemma 4.5). It is attained if all others contribute -g.
- Replace or zero out: J is the same for both neighbours, and 0 with probability w_0. Give the observer a label: J if it
  is not 0, else some j with probability a_j. That can only help. Given label j, which has probability
  m_j = w_0 a_j + w_j, both neighbours share the component in which the record is not drawn, and their other components
  are at most 2 j clip norms away from it and from each other. So delta at log(1 + h (e^epsilon - 1)) is at most h times
  that of a shift by 2 j at epsilon, with h = w_j / m_j (Balle, Barthe and Gaboardi 2018, theorem 2), in either order.
  This holds for every choice of a.
"""

from __future__ import annotations

import math
from functools import lru_cache

from privctl.accounting.events.row import EventAccounting, NoiseSetting
from privctl.accounting.pld.gaussian_pairs import OneOfPairs
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Gaussian, GaussianMixture, Pair, Sampled, Symmetrized
from privctl.accounting.poisson_binomial import TAIL_OF_LOSSES, Floats, PoissonBinomial, poisson_binomial
from privctl.domain.events import RedrawnGaussian
from privctl.domain.guarantee import Adjacency


@lru_cache(maxsize=16)
def _times_drawn(examples: int, draws: int) -> PoissonBinomial:
    return poisson_binomial((1 / examples,) * draws, TAIL_OF_LOSSES)


def _pair(event: RedrawnGaussian, lower: bool) -> RepeatedPair:
    law = _times_drawn(event.examples, event.draws)
    if event.neighbours is not Adjacency.ADD_OR_REMOVE:
        return RepeatedPair(_replaced(event, law, lower), event.steps)
    mixture = GaussianMixture(
        shifts=tuple((2 * law.shifts).tolist()),
        weights=tuple(law.weights.tolist()),
        stddev=event.noise_multiplier,
        lost=0.0 if lower else law.tail_mass,
    )
    return RepeatedPair(mixture, event.steps)


def _replaced(event: RedrawnGaussian, law: PoissonBinomial, lower: bool) -> Pair:
    """The pair for replacing a record; truncated mass counts as ``draws`` draws, for lower bounds as the last kept."""
    weights = {int(j): float(w) for j, w in zip(law.shifts, law.weights, strict=True) if j > 0}
    last = int(law.shifts[-1]) if lower else event.draws
    weights[last] = weights.get(last, 0.0) + law.tail_mass
    labels = _labels(weights, max(0.0, 1 - math.fsum(weights.values())), event.noise_multiplier)
    pairs = tuple(
        Sampled(Gaussian(2 * j / event.noise_multiplier), min(1.0, weights[j] / chance)) for j, chance in labels.items()
    )
    return Symmetrized(OneOfPairs(pairs, tuple(labels.values())))


def _labels(weights: dict[int, float], idle: float, noise: float) -> dict[int, float]:
    """m_j for every j > 0 with a positive weight; ``idle`` is w_0.

    a_j is about proportional to 4^-j, which costs least for small epsilons, or, if smaller, to
    w_j j^2 e^(2 j^2 / sigma^2), the cost of a label: if a record is rarely drawn twice, few such labels hide it.
    """
    first = min(j for j, weight in weights.items() if weight > 0)
    shares = {}
    for j, weight in weights.items():
        if weight > 0:
            log_cost = (
                math.log(weight / weights[first]) + 2 * math.log(j / first) + 2 * (j * j - first**2) / noise / noise
            )
            shares[j] = math.exp(min((first - j) * math.log(4), log_cost))
    total = math.fsum(shares.values())
    chances = {j: weights[j] + idle * share / total for j, share in shares.items()}
    whole = math.fsum(chances.values())
    return {j: chance / whole for j, chance in chances.items()}


def _divergences(event: RedrawnGaussian, alphas: Floats) -> Floats:
    raise ValueError("for batches drawn with replacement it is known in one order of the neighbours only")


def _full_shift(event: RedrawnGaussian) -> float:
    """The shift if every place held the record in every step."""
    return 2 * event.draws * math.sqrt(event.steps) / event.noise_multiplier


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="noise_multiplier"),
    full_shift=_full_shift,
    extreme=lambda event: event.noise_multiplier < 1e-6 * event.draws,
)
