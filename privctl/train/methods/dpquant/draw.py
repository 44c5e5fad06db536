"""Samples layers by score: successive sampling, which is equivalent to Gumbel top-k, and inclusion probabilities."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privctl.domain.checks import at_least
from privctl.randomness import NoiseSource

Floats = NDArray[np.float64]

_DOMAIN = b"privctl layers 1"
#: As a function of the logarithm of time, the integrand is analytic in a strip of half-width pi/2 and decays fast at
#: both ends: the trapezoidal rule has an error of e^(-pi^2 / spacing), and the tails are below 1e-16.
_SPACING = 0.2
_LOG_TIMES = np.arange(-38.0, 4.0, _SPACING)


def order(scores: Sequence[float] | Floats, beta: float, seed: bytes, turn: int) -> NDArray[np.int64]:
    """All layers in an order by successive sampling: layer l is next with probability prop. to exp(-beta scores[l]).

    It is the order of -beta scores + Gumbel noise, largest first (Kool et al. 2019, "Stochastic beams", section 3).
    The noise is a function of ``seed`` and ``turn`` only; it need not be secret.
    """
    keys = -beta * np.asarray(scores, np.float64) + _gumbels(seed, turn, len(scores))
    return np.argsort(-keys, kind="stable").astype(np.int64)


def inclusion(scores: Sequence[float] | Floats, beta: float, count: int) -> Floats:
    """The probability (n,) that each layer is among the first ``count`` of ``order``.

    In the equivalent exponential race, layer l arrives at a time T_l with rate exp(-beta scores[l]), and the first
    ``count`` are taken (Efraimidis and Spirakis 2006). It is among them if fewer than ``count`` others arrive before
    it. Given T_l, their number is Poisson binomial; the probability is integrated numerically over T_l.
    """
    at_least("count", count, 0)
    logarithms = np.asarray(scores, np.float64) * -beta
    if count >= len(logarithms):
        return np.ones(len(logarithms))
    probabilities = np.empty(len(logarithms))
    for layer in range(len(logarithms)):
        probabilities[layer] = _share_in_time(logarithms, layer, count)
    return probabilities


def _share_in_time(logarithms: Floats, layer: int, count: int) -> float:
    """P(fewer than ``count`` others before ``layer``), in units of time in which the layer's own rate is 1."""
    with np.errstate(over="ignore"):  # a rate that overflows to infinity arrives first, as it would in any case
        others = np.exp(np.delete(logarithms, layer) - logarithms[layer])
    time = np.exp(_LOG_TIMES)
    law = np.zeros((count, len(time)))  # probabilities of 0 to count - 1 earlier arrivals
    if not count:
        return 0.0
    law[0] = 1.0
    for rate in others:
        waits = np.exp(-rate * time)
        law[1:] = law[1:] * waits - law[:-1] * np.expm1(-rate * time)
        law[0] *= waits
    return float(_SPACING * (time * np.exp(-time)) @ law.sum(0))


def _gumbels(seed: bytes, turn: int, count: int) -> Floats:
    """Standard Gumbel deviates from the words of a cipher, which do not depend on any library's version."""
    source = NoiseSource(key=hashlib.sha256(_DOMAIN + b"\0" + seed).digest())
    words = source.words(turn, 0, count)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))
