"""Selects the examples of each step: (truncated or cyclic) Poisson sampling, balls and bins, fixed order, shuffling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from privctl.domain.checks import at_least, probability
from privctl.randomness import NoiseSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Uniforms are drawn in blocks of this many, so that a data set of any size needs little memory.
_BLOCK = 1 << 20
#: Part of the seed of public batches, which keeps it apart from the seeds of other orders.
_PUBLIC = 0x7075_626C


class BatchSource(Protocol):
    """The examples of each step."""

    def batch(self, step: int) -> NDArray[np.int64]:
        """The indices of the examples of ``step``, which counts from 0; possibly none."""
        ...


@dataclass(frozen=True, slots=True)
class PoissonBatches:
    """Each of ``size`` examples takes part with probability ``rate``, independently.

    Amplification by subsampling requires that the draws stay secret, so they come from the cryptographic source, under
    a key that is never revealed. The probability is ``rate`` rounded down to a multiple of 2^-64. Raises ValueError for
    a size below 1 or a rate outside [0, 1].
    """

    size: int
    rate: float
    source: NoiseSource

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        probability("rate", self.rate)

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``; sorted."""
        if self.rate == 1:
            return np.arange(self.size)
        # Scaling by 2^64 only changes the exponent, so the threshold is exact or rounded down.
        threshold = np.uint64(int(self.rate * 2.0**64))
        drawn = []
        for block, start in enumerate(range(0, self.size, _BLOCK)):
            words = self.source.words(step, block, min(_BLOCK, self.size - start))
            drawn.append(np.flatnonzero(words < threshold) + start)
        return np.concatenate(drawn).astype(np.int64)


@dataclass(frozen=True, slots=True)
class TruncatedPoisson:
    """Batches of ``PoissonBatches``, truncated to ``largest`` examples by keeping a uniform random subset.

    The examples with the smallest of independent 64-bit words are kept, so every subset of that size is equally likely
    up to the chance that two words are equal. Raises ValueError for a size or ``largest`` below 1, or a rate outside
    [0, 1].
    """

    size: int
    rate: float
    largest: int
    source: NoiseSource

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        at_least("largest", self.largest, 1)
        probability("rate", self.rate)

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``; sorted."""
        drawn = PoissonBatches(self.size, self.rate, self.source).batch(step)
        if len(drawn) <= self.largest:
            return drawn
        # The blocks before these gave the sampling draws of the step.
        first = -(-self.size // _BLOCK)
        words = [
            self.source.words(step, first + block, min(_BLOCK, len(drawn) - start))
            for block, start in enumerate(range(0, len(drawn), _BLOCK))
        ]
        kept = np.argpartition(np.concatenate(words), self.largest - 1)[: self.largest]
        return np.sort(drawn[kept])

    def others(self, step: int) -> int:
        """How many examples other than the last are sampled in ``step``, before truncation."""
        drawn = PoissonBatches(self.size, self.rate, self.source).batch(step)
        return int(np.count_nonzero(drawn < self.size - 1))


@dataclass(frozen=True, slots=True)
class BallsAndBins:
    """In each pass of ``bins`` steps, each of ``size`` examples takes part in one step, uniform and independent.

    The choice must stay secret, so it comes from the cryptographic source; it is a function of the source's key and the
    pass, so a run resumed within a pass needs the same key. A step's probability is 1 / ``bins`` up to a relative error
    of ``bins`` / 2^64. Raises ValueError for a size or number of bins below 1, or for 2^32 bins or more.
    """

    size: int
    bins: int
    source: NoiseSource

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        at_least("bins", self.bins, 1)
        if self.bins >= 2**32:
            raise ValueError(f"bins is {self.bins}; it must be below 2^32")

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``; sorted."""
        drawn = []
        for block, start in enumerate(range(0, self.size, _BLOCK)):
            words = self.source.words(step // self.bins, block, min(_BLOCK, self.size - start))
            drawn.append(np.flatnonzero(_scaled_below(words, self.bins) == np.uint64(step % self.bins)) + start)
        return np.concatenate(drawn).astype(np.int64)


class CyclicPoisson:
    """Each of ``size`` examples belongs to one of ``parts``, which take turns; it is sampled in its part's steps.

    Step t is the turn of part t mod ``parts``, whose examples each take part with probability min(1, ``rate`` *
    ``parts``), so ``rate`` is the probability for an example whose part is unknown. Parts are drawn once, independently
    for each example, and sampling draws are fresh in every step, all from the source's key: a resumed run needs the
    same key, or an example might take part again too soon. Probabilities are rounded down as in ``PoissonBatches``.
    Keeps two bytes per example. Raises ValueError for a size or number of parts below 1, for 2^16 parts or more, or for
    a rate outside [0, 1].
    """

    def __init__(self, size: int, parts: int, rate: float, source: NoiseSource) -> None:
        at_least("size", size, 1)
        at_least("parts", parts, 1)
        probability("rate", rate)
        if parts >= 2**16:
            raise ValueError(f"parts is {parts}; it must be below 2^16")
        self._source, self._parts, self._rate = source, parts, min(1.0, rate * parts)
        drawn = [
            _scaled_below(source.words(0, block, min(_BLOCK, size - start)), parts).astype(np.uint16)
            for block, start in enumerate(range(0, size, _BLOCK))
        ]
        self._part = np.concatenate(drawn)

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``; sorted."""
        turn = np.flatnonzero(self._part == step % self._parts)
        if self._rate == 1:
            return turn.astype(np.int64)
        threshold = np.uint64(int(self._rate * 2.0**64))
        # The first stream of the key drew the parts.
        coins = [
            self._source.words(step + 1, block, min(_BLOCK, len(turn) - start)) < threshold
            for block, start in enumerate(range(0, len(turn), _BLOCK))
        ]
        return turn[np.concatenate(coins)].astype(np.int64) if coins else turn.astype(np.int64)


@dataclass(frozen=True, slots=True)
class FixedOrder:
    """Each of ``size`` examples takes part in one step of each pass of ``bins`` steps, the same step in all passes.

    The order is a permutation derived from ``seed`` alone, so it does not depend on the data. It is not secret. Batch
    sizes differ by at most one. Raises ValueError for a size or number of bins below 1.
    """

    size: int
    bins: int
    seed: int

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        at_least("bins", self.bins, 1)

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``; sorted."""
        order = np.random.default_rng((self.seed, 0)).permutation(self.size)
        turn = step % self.bins
        return np.sort(order[turn * self.size // self.bins : (turn + 1) * self.size // self.bins])


@dataclass(frozen=True, slots=True)
class PublicBatches:
    """Batches of exactly ``batch_size`` of ``size`` public examples, in a new random order in each pass.

    The remainder of a pass is skipped, so all batches have the same size. The order is a function of ``seed`` and the
    step alone, with a seed that no other order of a run uses: it depends on no private record, and a resumed run needs
    no state. Raises ValueError for a ``batch_size`` below 1 or above ``size``.
    """

    size: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size, 1)
        at_least("size", self.size, self.batch_size)

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``."""
        pass_number, turn = divmod(step, self.size // self.batch_size)
        order = np.random.default_rng((self.seed, pass_number, _PUBLIC)).permutation(self.size)
        return order[turn * self.batch_size : (turn + 1) * self.batch_size]


def _scaled_below(words: NDArray[np.uint64], bound: int) -> NDArray[np.uint64]:
    """Floor of word * ``bound`` / 2^64 for each word, with ``bound`` below 2^32, computed in halves of 32 bits."""
    half, times = np.uint64(32), np.uint64(bound)
    low = (words & np.uint64(2**32 - 1)) * times >> half
    return ((words >> half) * times + low) >> half


class WeightedBatches:
    """Example i takes part with probability ``probabilities[i]``, (examples,), independently of all others (Hush).

    The draws are secret, and probabilities are rounded down as in ``PoissonBatches``: an example with probability 0 is
    never drawn, one with 1 in every step. Keeps 16 bytes per example with a positive probability below 1.
    """

    def __init__(self, probabilities: NDArray[np.float64], source: NoiseSource) -> None:
        """Raises ValueError if there are no examples, or for a probability outside [0, 1]."""
        if probabilities.ndim != 1 or not len(probabilities):
            raise ValueError(f"probabilities have the shape {probabilities.shape}; give one for each example")
        if not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise ValueError("probabilities must all lie between 0 and 1")
        self._source = source
        self._sure = np.flatnonzero(probabilities == 1)
        self._open = np.flatnonzero((probabilities > 0) & (probabilities < 1))
        # Scaling by 2^64 only changes the exponent, and the cast truncates.
        self._thresholds = (probabilities[self._open] * 2.0**64).astype(np.uint64)

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``; sorted."""
        parts = [self._sure]
        for block, start in enumerate(range(0, len(self._open), _BLOCK)):
            block_rows = slice(start, start + _BLOCK)
            thresholds = self._thresholds[block_rows]
            drawn = self._source.words(step, block, len(thresholds)) < thresholds
            parts.append(self._open[block_rows][drawn])
        return np.sort(np.concatenate(parts)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Passes:
    """Each of ``size`` examples once per pass, ``batch_size`` per step; the last step of a pass may have fewer.

    The order is a permutation derived from ``seed`` and the number of the pass alone, so it does not depend on the
    data. It is not secret.
    """

    size: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        at_least("batch_size", self.batch_size, 1)

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``."""
        pass_steps = -(-self.size // self.batch_size)
        order = np.random.default_rng((self.seed, step // pass_steps)).permutation(self.size)
        start = step % pass_steps * self.batch_size
        return order[start : start + self.batch_size]
