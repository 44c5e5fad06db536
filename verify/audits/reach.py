"""Whether the smallest detectable effect that an audit states follows from its counts: epsilons, AUCs, rates.

A gate relies on these numbers, so a number that was changed on its own must be noticed. Uses binomial sums and
bisection where the audit uses the incomplete beta function, and tails where it uses quantiles. Standard library only.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from verify.audits.canaries.bounds import either_rejects_zero
from verify.audits.ranks.limits import MOMENTS, reaches
from verify.audits.terms import BEYOND, BOUND, WIDENED, counts_of
from verify.laws.counts import at_most, fisher, gamma_beyond

_ON_TRAINING, _ON_HELD_OUT = "rate on training text", "rate on held-out text"
#: What prompts that repeat a word find beyond those of different words, and the names of both.
_OVER_CONTROL, _PROMPTS = "prompts that give training text, beyond the control", ("repeating", "control")
_TEXTS = ("training", "held_out")
_POWER, _CLOSE = 0.8, 1e-4
#: The relative tolerance of a tail, and the least skewness that an interval of an AUC counts with.
_TAIL, _LEAST_SKEWNESS = 1e-3, 1e-4
#: Steps of bisection on a rate.
_HALVINGS = 60
#: What is left out of a sum of probabilities, and the relative step at which a root counts as found.
_NEGLIGIBLE, _STEP = 5e-13, 1e-13
#: Larger counts are not supported, as for intervals.
_MOST = 100_000_000


def detectable_fault(item: Evidence, report: PrivacyReport) -> str:
    """What is wrong with the ``detectable`` detail of ``item`` in ``report``; "" if nothing is."""
    stated = item.details.get("detectable")
    if stated is None or not 0 < item.confidence < 1:
        return ""
    if item.quantity == "AUC" and item.interval == WIDENED:
        return _fitted_fault(item, stated)
    if item.quantity == "AUC":
        return _area_fault(stated, (item.samples.get("members", 0), item.samples.get("nonmembers", 0)), item.confidence)
    if item.method == BOUND and item.lower is not None:
        found = [_epsilon(item)]
    elif item.method == "extraction" and item.quantity in (_ON_TRAINING, _ON_HELD_OUT):
        texts = item.samples.get(_TEXTS[item.quantity == _ON_HELD_OUT], 0)
        found = [1 - (1 - item.confidence) ** (1 / texts)] if texts > 0 else [math.inf]
    elif item.method == "extraction" and item.quantity in BEYOND:
        found = [_by_test(item, _TEXTS)] if "p_value" in item.details else _beyond(item, report.evidence)
    elif item.quantity in BEYOND:
        found = [_by_test(item, _TEXTS)]
    elif item.quantity == _OVER_CONTROL:
        found = [_by_test(item, _PROMPTS)]
    else:
        return ""
    if any(math.isclose(stated, each, rel_tol=_CLOSE, abs_tol=_CLOSE) for each in found):
        return ""
    return f"{stated:.4g} is not the least that it would have seen; its counts give {found[0]:.4g}"


def _fitted_fault(item: Evidence, area: float) -> str:
    """What is wrong with ``area`` for a fitted score: its lower quantile must lie at the end of an interval around 1/2.

    The quantile is by Hanley and McNeil (1982), the interval by the moments over relabellings.
    """
    members, others = (item.samples.get(side, 0) for side in ("members", "nonmembers"))
    deviation = item.details.get("deviation", 0.0)
    if min(members, others) > 0 and 0.5 < area < 1 and item.details.keys() >= {*MOMENTS} and deviation > 0:
        square = area * area
        spread = area * (1 - area) + (members - 1) * (area / (2 - area) - square)
        spread += (others - 1) * (2 * square / (1 + area) - square)
        reach = deviation * reaches(item.details, (1 - item.confidence) / 2)[0]
        low = area - NormalDist().inv_cdf(_POWER) * math.sqrt(max(0.0, spread) / (members * others))
        if math.isclose(low, 0.5 + reach, abs_tol=_CLOSE):
            return ""
    return f"an AUC of {area:.4g} is not the smallest detectable with {members} members and {others} others"


def _area_fault(area: float, sizes: tuple[int, int], confidence: float) -> str:
    """What is wrong with ``area``: in the worse direction, 1/2 must be the lower limit of its lower quantile."""
    wrong = f"an AUC of {area:.4g} is not the smallest detectable with {sizes[0]} members and {sizes[1]} others"
    if min(sizes) < 1 or not 0.5 < area < 1:
        return wrong
    tail = max(_tail_at_chance(area, *some) for some in (sizes, sizes[::-1]))
    return "" if math.isclose(tail, (1 - confidence) / 2, rel_tol=_TAIL) else wrong


def _tail_at_chance(area: float, first: int, second: int) -> float:
    """With which probability the lower limit of an AUC, at its lower quantile, errs if it is 1/2.

    Scores are exponential; a third of the AUC is added as one more record (``audits.statistics.metrics``).
    """
    pairs, square = first * second, area * area
    spread = area * (1 - area) + (first - 1) * (area / (2 - area) - square)
    spread += (second - 1) * (2 * square / (1 + area) - square)
    low = area - NormalDist().inv_cdf(_POWER) * math.sqrt(max(0.0, spread) / pairs)
    if low <= 0.5:
        return 1.0
    centre, variance, skew = low, 0.0, 0.0
    odds = low / (1 - low)
    for size, other, power, sign in ((first, second, odds, -1.0), (second, first, 1 / odds, 1.0)):
        added = other / (first + second)
        mean = low * (size + added / 3) / (size + added)
        # Of V^power with V uniform, or of 1 - V^power, about the mean with the record added.
        about = mean if sign > 0 else 1 - mean
        raw = [1 / (1 + k * power) for k in range(4)]
        moments = [sum(math.comb(k, i) * raw[i] * (-about) ** (k - i) for i in range(k + 1)) * sign**k for k in (2, 3)]
        gap = low / 3 - mean
        centre *= mean / low
        variance += (size * moments[0] + added * gap**2) / (size + added) ** 2
        skew += 2 * (size * moments[1] + added * gap**3) / (size + added) ** 3
    shape = 4 / max(_LEAST_SKEWNESS, -skew / variance**1.5) ** 2
    return gamma_beyond(shape, shape + math.sqrt(shape / variance) * (centre - 0.5))


def _epsilon(item: Evidence) -> float:
    """The smallest epsilon of randomized response whose bound is above 0 with probability 0.8, for the best set."""
    sets = list(counts_of(item))
    share, delta = (1 - item.confidence) / len(sets), item.details.get("delta", 0.0)
    rates = []
    for canaries, guesses, _ in sets:
        rejects = either_rejects_zero(canaries, guesses, delta, share)
        if rejects(guesses):
            fewest = 1 + bisect_left(range(1, guesses), True, key=rejects)
            rates.append(_rate_reaching(fewest, guesses))
    return min((math.log(rate) - math.log1p(-rate) for rate in rates), default=math.inf)


def _beyond(item: Evidence, evidence: Sequence[Evidence]) -> list[float]:
    """The smallest detectable excess over the held-out rate, for each count that undecided held-out texts allow."""
    details = item.details
    train, total, found = (int(details[key]) for key in ("training_texts", "held_out_texts", "held_out_extracted"))
    if not (0 < train <= _MOST and 0 <= found <= total <= _MOST):
        return [math.inf]
    kin = next((each for each in evidence if each.quantity == _ON_HELD_OUT), None)
    unsure = 0 if kin is None else int(kin.details.get("undecided", 0))
    return [least_beyond(train, most, total, (1 - item.confidence) / 4) for most in range(found, found + unsure + 1)]


def _by_test(item: Evidence, sides: tuple[str, str]) -> float:
    """The smallest excess over the rate of the second of two ``sides`` that Fisher's exact test of them detects."""
    keys = (f"{sides[0]}_texts", f"{sides[1]}_texts", f"{sides[1]}_most")
    train, total, most = (int(item.details.get(key, -1)) for key in keys)
    if not (0 < train <= _MOST and 0 <= most <= total <= _MOST and total):
        return math.inf
    return least_by_fisher(train, most, total, 1 - item.confidence)


def least_by_fisher(train: int, most: int, total: int, level: float) -> float:
    """The smallest rate on ``train`` texts that Fisher's exact test detects at ``level``, less ``most`` / ``total``.

    Detection is with probability 0.8; infinity if not even extracting all texts would be significant.
    """
    fewest = 1 + bisect_left(range(1, train + 1), True, key=lambda k: fisher(k, train, most, total) <= level)
    return math.inf if fewest > train else max(0.0, _rate_reaching(fewest, train) - most / total)


def least_beyond(train: int, most: int, total: int, tail: float) -> float:
    """The smallest rate on ``train`` texts whose interval lies above that of ``most`` / ``total``, less this rate.

    It lies above with probability 0.8, and each limit errs with probability ``tail``. Infinity if no rate is detected.
    """
    fewest = _fewest_beyond(train, most, total, tail)
    return math.inf if fewest > train else max(0.0, _rate_reaching(fewest, train) - most / total)


def chance_to_decide(texts: int, rate: float, other: float, tail: float) -> float:
    """The probability that the interval of one count lies above that of the other.

    The counts are binomial, ``texts`` texts at ``rate`` and at ``other``. Other counts with a probability of 1e-12 in
    all are left out.
    """
    least = bisect_left(range(texts), True, key=lambda k: at_most(k, texts, other) > _NEGLIGIBLE)
    found, before, bar, fewest = 0.0, 0.0, 0.0, 0
    for most in range(least, texts):
        if most == least:
            bar, fewest = _upper(most, texts, tail), _fewest_beyond(texts, most, texts, tail)
        else:
            bar = _upper(most, texts, tail, bar)
            while fewest <= texts and 1 - at_most(fewest - 1, texts, bar) >= tail:
                fewest += 1
        below = at_most(most, texts, other)
        found += (below - before) * (1 - at_most(fewest - 1, texts, rate))
        before = below
        if below > 1 - _NEGLIGIBLE or fewest > texts:
            break
    return found


def _upper(most: int, total: int, tail: float, near: float | None = None) -> float:
    """The rate at which ``most`` or fewer of ``total`` come out with probability ``tail``.

    From ``near``, the rate for one fewer, by Newton's method on the logarithm, which is concave.
    """
    if near is None:
        return _root(lambda rate: at_most(most, total, rate) < tail)
    rate = min(near + 1 / total, (near + 1) / 2)
    log_choices = math.lgamma(total) - math.lgamma(most + 1) - math.lgamma(total - most)
    for _ in range(_HALVINGS):
        below = at_most(most, total, rate)
        slope = total * math.exp(log_choices + most * math.log(rate) + (total - 1 - most) * math.log1p(-rate))
        step = math.log(below / tail) * below / slope
        rate = min(max(rate + step, rate / 2), (rate + 1) / 2)
        if abs(step) < _STEP * rate:
            break
    return rate


@lru_cache(maxsize=4096)  # quantiles of a small count repeat, and so do counts while the texts needed are searched for
def _fewest_beyond(train: int, most: int, total: int, tail: float) -> int:
    """The fewest of ``train`` whose interval lies above that of ``most`` / ``total``; ``train`` + 1 if none does."""
    if most >= total:
        return train + 1
    bar = _root(lambda rate: at_most(most, total, rate) < tail)
    return 1 + bisect_left(range(1, train + 1), True, key=lambda k: 1 - at_most(k - 1, train, bar) < tail)


@lru_cache(maxsize=4096)
def _rate_reaching(fewest: int, trials: int) -> float:
    return _root(lambda rate: 1 - at_most(fewest - 1, trials, rate) >= _POWER)


def _root(holds: Callable[[float], bool]) -> float:
    """The smallest rate in [0, 1] for which ``holds``, which must be monotone."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
