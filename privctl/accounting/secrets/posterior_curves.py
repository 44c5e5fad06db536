"""Trade-off curves for a whole book of secrets: a certified posterior for each, and the least noise for all targets.

Three screens reserve exact curves for the few secrets that need one; a screen only ever raises a bound.

1. Fano: a posterior that follows from the nats alone and is within its target needs no curve (``fano.posterior``).
2. Groups: secrets whose sums of probabilities are alike share the curve of one law whose upper tails are the largest of
   theirs. It gives away at least as much as each of them (proof in ``trade_off``), so its bound holds for each, at
   its own prior. A group is halved while that is too coarse for some of its secrets, down to single secrets.
3. Candidates: the noise is first solved for the secrets that would need most of it if all curves were Gaussian. That
   is a guess, and no bound rests on it: the groups then certify every secret, and what they do not certify is solved
   for next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from privctl.accounting.brackets import falling_root
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.secrets.batched import least_noise
from privctl.accounting.secrets.count_laws import Integers, check_memberships, law_blocks, means_of, round_up_to_levels
from privctl.accounting.secrets.fano import posterior
from privctl.accounting.secrets.trade_off import COARSE, FINE, curve_of, pointwise_largest, tails_of_block
from privctl.domain.checks import at_least, positive

#: The sums of probabilities in a group differ by this factor at most, at first; and the precision of its curve.
_GROUP_RATIO, _ROUGH = 1.2, 1e-2
#: How many groups are halved to certify a noise that may still grow.
_MOST_HALVINGS = 60
#: Secrets that the noise is solved for at first, and up to which every secret has an exact curve.
_CANDIDATES, _FEW = 32, 24
#: Secrets that are solved for when a certificate failed.
_JOINING_PER_ROUND = 8
#: Secrets whose own curves are computed in a round, and rounds, of searching for the secret nearest to its target.
_SHARPENED, _ROUNDS = 3, 12
#: Relative width at which a search for noise stops, and the precision of its curves.
_RELATIVE_WIDTH, _PRECISION = 1e-6, 1e-4
#: Factor by which a search steps until it has a bracket.
_STRIDE = 1.4
#: Noise added at first, relatively, where groups are too coarse to certify a noise that exact curves would.
_SLACK = 1e-3
#: No plan goes below this noise multiplier on account of a curve.
LEAST = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SecretMemberships:
    """Which secret lies in which records, and how often these are drawn in each of ``steps`` steps.

    Secret j lies in the distinct ``records[starts[j]:starts[j + 1]]`` (int64), record i is in a batch with
    ``probabilities[i]`` (float64); ``priors`` [secrets] are the most probability that any value has beforehand.

    Raises ValueError where these do not fit together.
    """

    starts: Integers
    records: Integers
    probabilities: Floats
    priors: Floats
    steps: int

    def __post_init__(self) -> None:
        check_memberships(self.starts, self.records, self.probabilities)
        at_least("steps", self.steps, 1)
        if len(self.priors) != len(self.starts) - 1:
            raise ValueError(f"priors has {len(self.priors)} entries for {len(self.starts) - 1} secrets")
        if not ((self.priors > 0) & (self.priors < 1)).all():
            raise ValueError("priors must all be above 0 and below 1")

    def tails(self, places: Integers) -> Iterator[tuple[Integers, Floats]]:
        """Upper tails [length, secrets] of the laws of ``places`` (ascending), with the places, by blocks."""
        for block in law_blocks(self.starts, self.records, self.probabilities, places, long=round_up_to_levels):
            yield block.places, tails_of_block(block)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CurveCalibration:
    """The noise that keeps every posterior within its target, by the trade-off curve or by Fano's inequality.

    ``curve_bounds`` [secrets] are posteriors by the curve under that noise; ``binding`` is the secret nearest to its
    target. ``informations`` [secrets] are the nats given away, which give Fano's bounds, and ``fano_noise`` is the
    noise that Fano's inequality alone would need.
    """

    noise_multiplier: float
    fano_noise: float
    binding: int
    curve_bounds: Floats
    informations: Floats


def curve_bounds(
    book: SecretMemberships, sigma: float, needed: Floats | None = None, *, halved: float = math.inf
) -> Floats:
    """A posterior for every secret at noise multiplier ``sigma``, never below the true best; shape [secrets].

    Groups are halved, at most ``halved`` times, while a bound is above ``needed`` [secrets], where that is given; up to
    24 secrets have exact curves. A secret whose records are never drawn keeps its prior.

    Raises ValueError for a ``sigma`` that is not positive.
    """
    positive("sigma", sigma)
    bounds = book.priors.copy()
    means = means_of(book.starts, book.records, book.probabilities)
    drawn = np.flatnonzero(means > 0)
    bounds[drawn] = 1.0
    if len(drawn) <= _FEW:
        _lower_by_own_curves(book, sigma, drawn, bounds)
        return bounds
    _fill_by_groups(book, sigma, drawn, means, bounds)
    if needed is not None:
        _halve_groups(book, sigma, drawn[bounds[drawn] > needed[drawn]], means, needed, bounds, halved)
    return bounds


def sharpen(book: SecretMemberships, sigma: float, bounds: Floats, fano: Floats, targets: Floats) -> int:
    """Lower ``bounds`` [secrets] at ``sigma`` by the own curves of the secrets that may be nearest to ``targets``.

    A secret's bound is the lower of the curve's and ``fano``'s. Returns the secret that is nearest in the end.
    """
    sharp = bounds <= book.priors
    for _ in range(_ROUNDS):
        order = np.argsort(-np.minimum(bounds, fano) / targets, kind="stable")[:_SHARPENED]
        if sharp[order[0]]:
            break
        _lower_by_own_curves(book, sigma, np.sort(order[~sharp[order]]), bounds)
        sharp[order] = True
    return int((np.minimum(bounds, fano) / targets).argmax())


def least_noise_by_curve(
    book: SecretMemberships,
    targets: Floats,
    budgets: Floats,
    nats: Callable[[float], Floats],
) -> CurveCalibration:
    """The least noise with which every posterior is certified to be within ``targets`` [secrets].

    ``budgets`` [secrets] are the nats that lead from prior to target, ``nats(sigma)`` what a run gives away about each
    secret at that noise. The noise is never more than Fano's inequality needs, nor below ``LEAST`` unless that is. For
    up to 24 secrets it is the least to about 1e-4; for more it may be a few 0.1 % above, because groups certify the
    rest.

    Raises ValueError as ``batched.least_noise`` does.
    """
    most = least_noise(book.starts, book.records, book.probabilities, budgets, book.steps).noise_multiplier
    sigma, tried = _candidates(book, targets, min(LEAST, most), most)
    bounds, slack = np.ones(len(targets)), _SLACK
    while True:
        amounts = nats(sigma)
        by_fano = amounts <= budgets
        needed = np.where(by_fano | (bounds <= targets), 1.0, targets)
        bounds = np.minimum(bounds, curve_bounds(book, sigma, needed, halved=_MOST_HALVINGS))
        failing = np.flatnonzero(~by_fano & (bounds > targets))
        if sigma >= most or not len(failing):
            break
        worst = failing[np.argsort(-(bounds / targets)[failing], kind="stable")[:_JOINING_PER_ROUND]]
        higher = _least_for_all(book, targets, np.setdiff1d(worst, tried), sigma, most)
        tried, slack = np.union1d(tried, worst), 2 * slack
        sigma = min(higher if higher > sigma else sigma * (1 + slack), most)
    # Only where the curve is loose can Fano's inequality be the sharper one.
    fano, loose = np.ones(len(bounds)), np.flatnonzero(bounds > targets)
    fano[loose] = fano_bounds(amounts[loose], book.priors[loose])
    return CurveCalibration(
        noise_multiplier=sigma,
        fano_noise=most,
        binding=sharpen(book, sigma, bounds, fano, targets),
        curve_bounds=bounds,
        informations=amounts,
    )


def fano_bounds(nats: Floats, priors: Floats) -> Floats:
    """The posterior that each secret's ``nats`` allow by Fano's inequality; shape [secrets]."""
    pairs = zip(nats.tolist(), priors.tolist(), strict=True)
    return np.array([posterior(amount, prior) for amount, prior in pairs])


def _candidates(book: SecretMemberships, targets: Floats, low: float, high: float) -> tuple[float, Integers]:
    """The noise that the first candidates need, between ``low`` and ``high``, and these candidates."""
    means = means_of(book.starts, book.records, book.probabilities)
    # Steps of mean shift m and noise s are nearly one Gaussian of shift sqrt(T) m / s, where s is large.
    needs = math.sqrt(book.steps) * means / (ndtri(targets) - ndtri(book.priors))
    chosen = np.argsort(-needs, kind="stable")[:_CANDIDATES]
    chosen = chosen[means[chosen] > 0]
    return _least_for_all(book, targets, chosen, low, high, start=float(needs.max())), chosen


def _least_for_all(
    book: SecretMemberships, targets: Floats, chosen: Integers, low: float, high: float, *, start: float | None = None
) -> float:
    """The least noise from ``low`` to ``high`` that ``chosen`` need, solved in their order; ``high`` suffices for all.

    The search begins at ``start``, if there is one.
    """
    sigma = low
    laws = dict(_laws(book, np.sort(chosen)))
    for j in chosen.tolist():
        if sigma >= high:
            return high
        sigma = _least_noise_from(
            _posterior_excess(book, laws[j], float(book.priors[j]), float(targets[j])), sigma, high, start or sigma
        )
        start = None
    return sigma


def _posterior_excess(book: SecretMemberships, tails: Floats, prior: float, target: float) -> Callable[[float], float]:
    """The logarithm of a secret's posterior / target as a function of the noise; on a finer grid near 0."""

    def excess(sigma: float) -> float:
        value = 0.0
        for precision, decided in ((_ROUGH, 0.1), (COARSE, 0.01), (_PRECISION, 0.0)):
            curve = curve_of(tails, sigma, book.steps, precision, prior=prior)
            value = math.log(curve.posterior(prior) / target)
            if value < -decided or value > decided:
                break
        return value

    return excess


def _least_noise_from(excess: Callable[[float], float], low: float, high: float, start: float) -> float:
    """The least noise from ``low`` on with ``excess`` <= 0, which falls; ``high`` is known to meet it.

    The search begins at ``start``. The condition was checked at the returned noise, unless that is ``high``.
    """
    at = min(max(start, low), high)
    left = right = excess(at)
    if right <= 0:
        while right <= 0:
            if at == low:
                return low
            high, kept, at = at, right, max(low, at / _STRIDE)
            right = excess(at)
        low, left, right = at, right, kept
    else:
        while left > 0:
            if high - at <= _RELATIVE_WIDTH * high:
                return high
            low, kept, at = at, left, min(at * _STRIDE, math.sqrt(at * high))
            left = excess(at)
        high, left, right = at, kept, left
    return falling_root(excess, low, left, high, right, close=_RELATIVE_WIDTH, beyond=_RELATIVE_WIDTH)


def _laws(book: SecretMemberships, places: Integers) -> Iterator[tuple[int, Floats]]:
    for block, tails in book.tails(places):
        for column, j in enumerate(block.tolist()):
            yield j, tails[:, column]


def _lower_by_own_curves(book: SecretMemberships, sigma: float, places: Integers, bounds: Floats) -> None:
    """Lower ``bounds`` for each of ``places`` to the bound by its own law; equal laws are computed once."""
    found: dict[tuple[bytes, float], float] = {}
    for j, tails in _laws(book, places):
        key = tails.tobytes(), float(book.priors[j])
        if key not in found:
            found[key] = _posterior_by_own_curve(key[0], key[1], sigma, book.steps)
        bounds[j] = min(bounds[j], found[key])


@lru_cache(maxsize=2 * _FEW)
def _posterior_by_own_curve(tails: bytes, prior: float, sigma: float, steps: int) -> float:
    """The posterior by the curve of one law. A plan asks for the same few again: to certify, to sharpen, to report."""
    return curve_of(np.frombuffer(tails), sigma, steps, FINE, prior=prior).posterior(prior)


def _fill_by_groups(book: SecretMemberships, sigma: float, places: Integers, means: Floats, bounds: Floats) -> None:
    """Fill ``bounds`` by one curve for each group of similar sums of probabilities."""
    group = np.floor(np.log(means[places]) / math.log(_GROUP_RATIO)).astype(np.int64)
    covers: dict[int, Floats] = {}
    for block, tails in book.tails(places):
        own = group[np.searchsorted(places, block)]
        for value in np.unique(own).tolist():
            most = tails[:, own == value].max(axis=1)
            covers[value] = pointwise_largest([covers[value], most]) if value in covers else most
    for value, tails in covers.items():
        members = places[group == value]
        priors = book.priors[members]
        bounds[members] = curve_of(tails, sigma, book.steps, _ROUGH, prior=float(priors.min())).posteriors(priors)


def _halve_groups(
    book: SecretMemberships, sigma: float, places: Integers, means: Floats, targets: Floats, bounds: Floats, most: float
) -> None:
    """Lower ``bounds`` for those of ``places`` that are above ``targets``, by the curves of at most ``most`` groups."""
    if not len(places):
        return
    laws = dict(_laws(book, places))
    # What tells two laws with one mean apart, to second order: sum p^2 / sum p.
    squares = means_of(book.starts, book.records, book.probabilities**2)
    least = np.maximum(means, 1e-300)
    features = np.stack([np.log(least), squares / least])
    waiting = [places]
    while waiting and most > 0:
        waiting.sort(key=lambda part: float((bounds[part] / targets[part]).max()))
        part = waiting.pop()
        most -= 1
        cover, priors = pointwise_largest([laws[j] for j in part.tolist()]), book.priors[part]
        curve = curve_of(cover, sigma, book.steps, COARSE, prior=float(priors.min()))
        bounds[part] = np.minimum(bounds[part], curve.posteriors(priors))
        part = part[bounds[part] > targets[part]]
        if len(part) == 1:
            _lower_by_own_curves(book, sigma, part, bounds)
        elif len(part):
            own = features[:, part]
            order = np.argsort(own[int(np.ptp(own, axis=1).argmax())], kind="stable")
            if np.ptp(own, axis=1).max() == 0:
                _lower_by_own_curves(book, sigma, part, bounds)
                continue
            middle = len(part) // 2
            waiting += [part[np.sort(order[:middle])], part[np.sort(order[middle:])]]
