"""Trade-off curves for a whole book of secrets: a certified posterior for each, and the least noise that keeps them.

Three screens keep exact curves for the few secrets that need one; each only ever raises a bound.

1. Fano: a posterior that follows from the nats alone and is within its target needs no curve (``secrets.posterior``).
2. Groups: secrets whose sums of probabilities are alike share the curve of one law whose upper tails are the largest of
   theirs. It gives away at least as much as each of them (proof in ``one_curve``), so its bound is theirs, each at
   its own prior. A group is halved while that is too coarse for some of its secrets, down to single secrets.
3. Candidates: the noise is first solved for the secrets that would need most of it if all curves were Gaussian. That
   is a guess, and no bound rests on it: the groups then certify every secret, and what they do not certify is solved
   for next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from privctl.accounting.brackets import falling_root
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.secrets.batched import least_noise
from privctl.accounting.secrets.fano import posterior
from privctl.accounting.secrets.loss_laws import Integers, check_memberships, law_blocks, means_of, raised
from privctl.accounting.secrets.one_curve import COARSE, FINE, Curve, curve_of, largest, tails_of_block
from privctl.domain.checks import at_least, positive
from privctl.domain.progress import Advance, silent

#: The sums of probabilities in a group differ by this factor at most, at first; and how finely it is then looked at.
_ALIKE, _ROUGH = 1.2, 1e-2
#: Halved groups of one certificate of a noise that may still grow.
_HALVED = 60
#: Secrets that the noise is solved for at first, and up to which every secret has an exact curve.
_CANDIDATES, _FEW = 32, 24
#: Secrets that are solved for when a certificate failed.
_JOINING = 8
#: Secrets whose own curves are looked at in a round, and rounds, of looking for the nearest.
_SHARP, _ROUNDS = 3, 12
#: Relative width at which a search for noise stops, and the grid it looks at.
_CLOSE, _PRECISION = 1e-6, 1e-4
#: Factor by which a search steps until it has the noise between two values.
_STRIDE = 1.4
#: Noise added at first, relatively, where groups are too coarse to certify what exact curves would.
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
        for block in law_blocks(self.starts, self.records, self.probabilities, places, long=raised):
            yield block.places, tails_of_block(block)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptByCurve:
    """The noise that keeps every posterior within its target, by the trade-off curve or by Fano's inequality.

    ``curve_bounds`` [secrets] are posteriors by the curve under that noise; ``binding`` is the secret nearest to its
    target. ``informations`` [secrets] are the nats given away, from which Fano's inequality follows, and ``fano_noise``
    is what that alone would ask for.
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
    found = book.priors.copy()
    means = means_of(book.starts, book.records, book.probabilities)
    drawn = np.flatnonzero(means > 0)
    found[drawn] = 1.0
    if len(drawn) <= _FEW:
        _exact(book, sigma, drawn, found)
        return found
    _grouped(book, sigma, drawn, means, found)
    if needed is not None:
        _halve(book, sigma, drawn[found[drawn] > needed[drawn]], means, needed, found, halved)
    return found


def sharpen(book: SecretMemberships, sigma: float, found: Floats, fano: Floats, targets: Floats) -> int:
    """Lowers bounds ``found`` [secrets] at ``sigma`` to what a secret's own curve says, where it may be the nearest.

    Nearest to ``targets``, that is, by the curve or by ``fano``, whichever is lower. Returns the secret that then is.
    """
    sharp = found <= book.priors
    for _ in range(_ROUNDS):
        order = np.argsort(-np.minimum(found, fano) / targets, kind="stable")[:_SHARP]
        if sharp[order[0]]:
            break
        _exact(book, sigma, np.sort(order[~sharp[order]]), found)
        sharp[order] = True
    return int((np.minimum(found, fano) / targets).argmax())


def least_noise_by_curve(
    book: SecretMemberships,
    targets: Floats,
    budgets: Floats,
    nats: Callable[[float], Floats],
    *,
    advance: Advance = silent,
) -> KeptByCurve:
    """The least noise with which every posterior is certified to be within ``targets`` [secrets].

    ``budgets`` [secrets] are the nats that lead from prior to target, ``nats(sigma)`` what a run gives away of each
    secret at that noise. The noise is never more than what Fano's inequality asks for, nor below ``LEAST`` unless that
    is. For up to 24 secrets it is the least to about 1e-4, for more it may be above that by a few 0.1 %, where groups
    certify the others.

    Raises ValueError as ``batched.least_noise`` does.
    """
    most = least_noise(
        book.starts, book.records, book.probabilities, budgets, book.steps, advance=advance
    ).noise_multiplier
    sigma, tried = _candidates(book, targets, min(LEAST, most), most)
    found, slack = np.ones(len(targets)), _SLACK
    while True:
        amounts = nats(sigma)
        by_fano = amounts <= budgets
        needed = np.where(by_fano | (found <= targets), 1.0, targets)
        found = np.minimum(found, curve_bounds(book, sigma, needed, halved=_HALVED))
        failing = np.flatnonzero(~by_fano & (found > targets))
        if sigma >= most or not len(failing):
            break
        worst = failing[np.argsort(-(found / targets)[failing], kind="stable")[:_JOINING]]
        higher = _solved(book, targets, np.setdiff1d(worst, tried), sigma, most)
        tried, slack = np.union1d(tried, worst), 2 * slack
        sigma = min(higher if higher > sigma else sigma * (1 + slack), most)
    # Only where the curve is loose can Fano's inequality be the sharper one.
    fano, loose = np.ones(len(found)), np.flatnonzero(found > targets)
    fano[loose] = fano_bounds(amounts[loose], book.priors[loose])
    return KeptByCurve(
        noise_multiplier=sigma,
        fano_noise=most,
        binding=sharpen(book, sigma, found, fano, targets),
        curve_bounds=found,
        informations=amounts,
    )


def fano_bounds(nats: Floats, priors: Floats) -> Floats:
    """The posterior that each secret's ``nats`` allow by Fano's inequality; shape [secrets]."""
    pairs = zip(nats.tolist(), priors.tolist(), strict=True)
    return np.array([posterior(amount, prior) for amount, prior in pairs])


def _candidates(book: SecretMemberships, targets: Floats, low: float, high: float) -> tuple[float, Integers]:
    """The noise that the first candidates need, between ``low`` and ``high``, and which they are."""
    means = means_of(book.starts, book.records, book.probabilities)
    # Steps of mean shift m and noise s are nearly one Gaussian of shift sqrt(T) m / s, where s is large.
    needs = math.sqrt(book.steps) * means / (ndtri(targets) - ndtri(book.priors))
    chosen = np.argsort(-needs, kind="stable")[:_CANDIDATES]
    chosen = chosen[means[chosen] > 0]
    return _solved(book, targets, chosen, low, high, start=float(needs.max())), chosen


def _solved(
    book: SecretMemberships, targets: Floats, chosen: Integers, low: float, high: float, *, start: float | None = None
) -> float:
    """The least noise from ``low`` to ``high``, which suffices for all, that ``chosen`` need; in their order.

    ``start`` is where to look first.
    """
    sigma = low
    laws = dict(_laws(book, np.sort(chosen)))
    for j in chosen.tolist():
        if sigma >= high:
            return high
        sigma = _least(_short(book, laws[j], float(book.priors[j]), float(targets[j])), sigma, high, start or sigma)
        start = None
    return sigma


def _short(book: SecretMemberships, tails: Floats, prior: float, target: float) -> Callable[[float], float]:
    """The logarithm of a secret's posterior over its target, by noise; finely where that is near 0."""

    def excess(sigma: float) -> float:
        value = 0.0
        for precision, decided in ((_ROUGH, 0.1), (COARSE, 0.01), (_PRECISION, 0.0)):
            curve = curve_of(tails, sigma, book.steps, precision, prior=prior)
            value = math.log(curve.posterior(prior) / target)
            if value < -decided or value > decided:
                break
        return value

    return excess


def _least(excess: Callable[[float], float], low: float, high: float, start: float) -> float:
    """The least noise from ``low`` on with ``excess`` <= 0, which falls; ``high`` is known to meet it.

    The search begins at ``start``. What it returns has met the condition, or is ``high``.
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
            if high - at <= _CLOSE * high:
                return high
            low, kept, at = at, left, min(at * _STRIDE, math.sqrt(at * high))
            left = excess(at)
        high, left, right = at, kept, left
    return falling_root(excess, low, left, high, right, close=_CLOSE, beyond=_CLOSE)


def _laws(book: SecretMemberships, places: Integers) -> Iterator[tuple[int, Floats]]:
    for block, tails in book.tails(places):
        for column, j in enumerate(block.tolist()):
            yield j, tails[:, column]


def _exact(book: SecretMemberships, sigma: float, places: Integers, found: Floats) -> None:
    """Lowers ``found`` for each of ``places`` to the bound by its own law; equal laws are looked at once."""
    known: dict[tuple[bytes, float], Curve] = {}
    for j, tails in _laws(book, places):
        prior = float(book.priors[j])
        key = tails.tobytes(), prior
        if key not in known:
            known[key] = curve_of(tails, sigma, book.steps, FINE, prior=prior)
        found[j] = min(found[j], known[key].posterior(prior))


def _grouped(book: SecretMemberships, sigma: float, places: Integers, means: Floats, found: Floats) -> None:
    """Fills ``found`` by one curve for each group of similar sums of probabilities."""
    group = np.floor(np.log(means[places]) / math.log(_ALIKE)).astype(np.int64)
    covers: dict[int, Floats] = {}
    for block, tails in book.tails(places):
        own = group[np.searchsorted(places, block)]
        for value in np.unique(own).tolist():
            most = tails[:, own == value].max(axis=1)
            covers[value] = largest([covers[value], most]) if value in covers else most
    for value, tails in covers.items():
        members = places[group == value]
        priors = book.priors[members]
        found[members] = curve_of(tails, sigma, book.steps, _ROUGH, prior=float(priors.min())).posteriors(priors)


def _halve(
    book: SecretMemberships, sigma: float, places: Integers, means: Floats, wanted: Floats, found: Floats, most: float
) -> None:
    """Lowers ``found`` for those of ``places`` that are above ``wanted``, by at most ``most`` groups of them."""
    if not len(places):
        return
    laws = dict(_laws(book, places))
    # What tells two laws with one mean apart, to second order: sum p^2 / sum p.
    squares = means_of(book.starts, book.records, book.probabilities**2)
    least = np.maximum(means, 1e-300)
    features = np.stack([np.log(least), squares / least])
    waiting = [places]
    while waiting and most > 0:
        waiting.sort(key=lambda part: float((found[part] / wanted[part]).max()))
        part = waiting.pop()
        most -= 1
        cover, priors = largest([laws[j] for j in part.tolist()]), book.priors[part]
        curve = curve_of(cover, sigma, book.steps, COARSE, prior=float(priors.min()))
        found[part] = np.minimum(found[part], curve.posteriors(priors))
        part = part[found[part] > wanted[part]]
        if len(part) == 1:
            _exact(book, sigma, part, found)
        elif len(part):
            own = features[:, part]
            order = np.argsort(own[int(np.ptp(own, axis=1).argmax())], kind="stable")
            if np.ptp(own, axis=1).max() == 0:
                _exact(book, sigma, part, found)
                continue
            middle = len(part) // 2
            waiting += [part[np.sort(order[:middle])], part[np.sort(order[middle:])]]
