"""Trade-off functions for many secrets: a certified posterior for each, and the least noise that meets all targets.

Three shortcuts limit exact curves to the few secrets that need one; a shortcut can only raise a bound.

1. Fano: a secret whose posterior by its information alone is within its target needs no curve (``fano.posterior``).
2. Groups: secrets with similar sums of probabilities share the curve of one distribution whose upper tail is the
   pointwise maximum of theirs. It reveals at least as much as each of them (proof in ``trade_off``), so its bound holds
   for each, at its own prior. A group is halved while its curve is too coarse for some of its secrets, down to single
   secrets.
3. Candidates: the noise is first solved for the secrets that would need the most if all curves were Gaussian. That is a
   guess on which no bound depends: the groups then certify every secret, and those not certified are solved for next.
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

#: The largest ratio of sums of probabilities in an initial group, and the precision of its curve.
_GROUP_RATIO, _ROUGH = 1.2, 1e-2
#: The most groups that are halved to certify a noise that may still grow.
_MOST_HALVINGS = 60
#: The number of secrets for which the noise is solved first, and up to which every secret gets an exact curve.
_CANDIDATES, _FEW = 32, 24
#: The number of secrets that are solved for after a failed certification.
_JOINING_PER_ROUND = 8
#: Exact curves per round, and rounds, of the search for the secret nearest to its target.
_SHARPENED, _ROUNDS = 3, 12
#: Relative width at which a search for noise stops, and the precision of its curves.
_RELATIVE_WIDTH, _PRECISION = 1e-6, 1e-4
#: Factor by which a search steps until it has a bracket.
_STRIDE = 1.4
#: Relative noise added at first if groups are too coarse to certify a noise that exact curves would.
_SLACK = 1e-3
#: Curves never lower a plan's noise multiplier below this.
LEAST = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SecretMemberships:
    """Which secrets are in which records, and the records' sampling rates in each of ``steps`` steps.

    Secret j is in the distinct records ``records[starts[j]:starts[j + 1]]`` (int64), and record i is in a batch with
    probability ``probabilities[i]`` (float64); ``priors`` [secrets] are the largest prior probabilities of any value.

    Raises ValueError for inconsistent fields.
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
        """Blocks of secrets among ``places`` (ascending), with their upper tails [length, secrets]."""
        for block in law_blocks(self.starts, self.records, self.probabilities, places, long=round_up_to_levels):
            yield block.places, tails_of_block(block)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CurveCalibration:
    """The noise that keeps every posterior within its target, by the trade-off function or by Fano's inequality.

    ``curve_bounds`` [secrets] are the posteriors by the curve at that noise. ``informations`` [secrets] are the nats
    revealed, from which Fano's bounds follow, and ``fano_noise`` is the noise that Fano's inequality alone would need.
    """

    noise_multiplier: float
    fano_noise: float
    curve_bounds: Floats
    informations: Floats


def curve_bounds(
    book: SecretMemberships, sigma: float, needed: Floats | None = None, *, halved: float = math.inf
) -> Floats:
    """An upper bound on the posterior of every secret at noise multiplier ``sigma``; shape [secrets].

    If ``needed`` [secrets] is given, groups with a bound above it are halved, at most ``halved`` times; up to 24
    secrets get exact curves. A secret whose records are never drawn keeps its prior.

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


def sharpen(book: SecretMemberships, sigma: float, bounds: Floats, fano: Floats, targets: Floats) -> None:
    """Lower ``bounds`` [secrets] at ``sigma`` by exact curves of the secrets that may be nearest to ``targets``.

    A secret's bound is the lower of the curve's and ``fano``'s.
    """
    sharp = bounds <= book.priors
    for _ in range(_ROUNDS):
        order = np.argsort(-np.minimum(bounds, fano) / targets, kind="stable")[:_SHARPENED]
        if sharp[order[0]]:
            break
        _lower_by_own_curves(book, sigma, np.sort(order[~sharp[order]]), bounds)
        sharp[order] = True


def least_noise_by_curve(
    book: SecretMemberships,
    targets: Floats,
    budgets: Floats,
    nats: Callable[[float], Floats],
) -> CurveCalibration:
    """The least noise with which every posterior is certified to be within ``targets`` [secrets].

    ``budgets`` [secrets] are the nats that lead from prior to target, and ``nats(sigma)`` those that a run reveals
    about each secret at that noise. The noise is at most what Fano's inequality needs, and at least ``LEAST`` or, if
    smaller, that. For up to 24 secrets it is minimal to about 1e-4; for more it may be a few tenths of a percent too
    high, because groups certify the rest.

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
    # Fano's inequality can be tighter only where the curve's bound is loose.
    fano, loose = np.ones(len(bounds)), np.flatnonzero(bounds > targets)
    fano[loose] = fano_bounds(amounts[loose], book.priors[loose])
    sharpen(book, sigma, bounds, fano, targets)
    return CurveCalibration(
        noise_multiplier=sigma,
        fano_noise=most,
        curve_bounds=bounds,
        informations=amounts,
    )


def fano_bounds(nats: Floats, priors: Floats) -> Floats:
    """The posteriors by Fano's inequality, given the ``nats`` of each secret; shape [secrets]."""
    pairs = zip(nats.tolist(), priors.tolist(), strict=True)
    return np.array([posterior(amount, prior) for amount, prior in pairs])


def _candidates(book: SecretMemberships, targets: Floats, low: float, high: float) -> tuple[float, Integers]:
    """The noise that the first candidates need, between ``low`` and ``high``, and these candidates."""
    means = means_of(book.starts, book.records, book.probabilities)
    # For large noise s, T steps with mean shift m are nearly one Gaussian of shift sqrt(T) m / s.
    needs = math.sqrt(book.steps) * means / (ndtri(targets) - ndtri(book.priors))
    chosen = np.argsort(-needs, kind="stable")[:_CANDIDATES]
    chosen = chosen[means[chosen] > 0]
    return _least_for_all(book, targets, chosen, low, high, start=float(needs.max())), chosen


def _least_for_all(
    book: SecretMemberships, targets: Floats, chosen: Integers, low: float, high: float, *, start: float | None = None
) -> float:
    """The least noise between ``low`` and ``high`` that suffices for ``chosen``, solved in order; ``high`` always does.

    The search begins at ``start``, if given.
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
    """The logarithm of a secret's posterior / target as a function of the noise; near 0, on a finer grid."""

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
    """The least noise of at least ``low`` with ``excess`` <= 0, which decreases; ``high`` is known to meet it.

    The search begins at ``start``. The condition was checked at the returned noise, unless that is ``high``.
    """
    noise = min(max(start, low), high)
    left = right = excess(noise)
    if right <= 0:
        while right <= 0:
            if noise == low:
                return low
            high, kept, noise = noise, right, max(low, noise / _STRIDE)
            right = excess(noise)
        low, left, right = noise, right, kept
    else:
        while left > 0:
            if high - noise <= _RELATIVE_WIDTH * high:
                return high
            low, kept, noise = noise, left, min(noise * _STRIDE, math.sqrt(noise * high))
            left = excess(noise)
        high, left, right = noise, kept, left
    return falling_root(excess, low, left, high, right, close=_RELATIVE_WIDTH, beyond=_RELATIVE_WIDTH)


def _laws(book: SecretMemberships, indices: Integers) -> Iterator[tuple[int, Floats]]:
    for block, tails in book.tails(indices):
        for column, j in enumerate(block.tolist()):
            yield j, tails[:, column]


def _lower_by_own_curves(book: SecretMemberships, sigma: float, indices: Integers, bounds: Floats) -> None:
    """Lower ``bounds`` for each of ``indices`` by its own curve; equal distributions are computed once."""
    by_law: dict[tuple[bytes, float], float] = {}
    for j, tails in _laws(book, indices):
        key = tails.tobytes(), float(book.priors[j])
        if key not in by_law:
            by_law[key] = _posterior_by_own_curve(key[0], key[1], sigma, book.steps)
        bounds[j] = min(bounds[j], by_law[key])


@lru_cache(maxsize=2 * _FEW)
def _posterior_by_own_curve(tails: bytes, prior: float, sigma: float, steps: int) -> float:
    """The posterior by one secret's own curve; cached, as certifying, sharpening and reporting ask for the same few."""
    return curve_of(np.frombuffer(tails), sigma, steps, FINE, prior=prior).posterior(prior)


def _fill_by_groups(book: SecretMemberships, sigma: float, indices: Integers, means: Floats, bounds: Floats) -> None:
    """Fill ``bounds`` with one curve per group of secrets with similar sums of probabilities."""
    group = np.floor(np.log(means[indices]) / math.log(_GROUP_RATIO)).astype(np.int64)
    covers: dict[int, Floats] = {}
    for block, tails in book.tails(indices):
        block_groups = group[np.searchsorted(indices, block)]
        for value in np.unique(block_groups).tolist():
            most = tails[:, block_groups == value].max(axis=1)
            covers[value] = pointwise_largest([covers[value], most]) if value in covers else most
    for value, tails in covers.items():
        members = indices[group == value]
        priors = book.priors[members]
        bounds[members] = curve_of(tails, sigma, book.steps, _ROUGH, prior=float(priors.min())).posteriors(priors)


def _halve_groups(
    book: SecretMemberships,
    sigma: float,
    indices: Integers,
    means: Floats,
    targets: Floats,
    bounds: Floats,
    most: float,
) -> None:
    """Lower the ``bounds`` of ``indices`` that exceed ``targets``, by the curves of at most ``most`` groups."""
    if not len(indices):
        return
    laws = dict(_laws(book, indices))
    # To second order, distributions with the same mean differ by sum p^2 / sum p.
    squares = means_of(book.starts, book.records, book.probabilities**2)
    least = np.maximum(means, 1e-300)
    features = np.stack([np.log(least), squares / least])
    waiting = [indices]
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
            part_features = features[:, part]
            order = np.argsort(part_features[int(np.ptp(part_features, axis=1).argmax())], kind="stable")
            if np.ptp(part_features, axis=1).max() == 0:
                _lower_by_own_curves(book, sigma, part, bounds)
                continue
            middle = len(part) // 2
            waiting += [part[np.sort(order[:middle])], part[np.sort(order[middle:])]]
