"""In which steps canary gradients take part, and the likelihood ratio of the releases: one law for each kind of run.

A canary plays the record, or the user, for which the accountant's bound is stated, in the worst case:

- *Poisson batches*: it is sampled in each step independently. A user whose records are clipped one by one counts as
  that many records, each sampled independently, whose gradients all point the same way.
- *Truncated Poisson batches*: M other records are sampled. If M is below the largest size B, nothing is truncated.
  Otherwise the canary is sampled and kept with probability q B / (M + 1), and replaces a record with the opposite
  gradient, so it moves the sum by two clip norms. No record is left out for it.
- *Balls and bins*: it is in one step of each pass, chosen uniformly.
- *Bands*: it belongs to the first part of the data, and is sampled in each turn of that part.
- *Buffers*: it is used in the first step of each pass.

With correlated noise, the rows of C times what is released have independent noise, so these rows are observed. Steps
that began and were lost were not observed; their releases count as 0, as their noise does (``steps.correlated_noise``).

Likelihood ratios are those for the stated noise, or for less if the canaries' entries scatter less: those for noise of
1 at a rate of 0.01 hardly tell who was included if the noise is 0.5. That scatter is a function of what was released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from privctl.accounting.buffered import BufferedMatrix
from privctl.accounting.poisson_binomial import poisson_binomial
from privctl.domain.events import Batches
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.sampling import BatchSource, TruncatedPoisson

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: The noise that entries show is overestimated by this many standard errors, so that the stated noise is seldom taken
#: for less, and is at least this share of it.
_ERRORS, _LEAST_NOISE = 3.0, 2.0**-10
#: Gives a random generator for each number.
Coins = Callable[[int], np.random.Generator]
_SCORES = "every_step"


def noise_shown(entries: Floats, square: float, stated: float) -> float:
    """The standard deviation of the noise in ``entries`` (canaries,), at most ``stated``, by their mean square.

    ``square`` is the mean square of an included canary's shift; every other canary is included.
    """
    found = math.sqrt(max(0.0, float(np.mean(entries * entries)) - square / 2))
    found *= 1 + _ERRORS / math.sqrt(2 * len(entries))
    return stated * min(1.0, max(_LEAST_NOISE, found / stated))


class CanaryLaw(Protocol):
    """How canaries take part and what was observed of them; arrays (canaries,) are in units of the clip norm."""

    def amounts(self, step: int, coins: Coins, batches: BatchSource | None) -> Floats:
        """By how much each canary, if included, moves the sum of ``step``; ``batches`` are those of the records.

        ``coins`` gives independent draws for different numbers, and the same draws for the same number.
        """
        ...

    def observe(self, step: int, released: Floats) -> None:
        """Record each canary's entry of what ``step`` released; ``amounts`` must have been called for that step."""
        ...

    def scores(self) -> Floats:
        """The log-likelihood ratio of all observations, for a canary being included versus not."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what ``tensors`` returned."""
        ...


def law_of(recipe: TrainingSettings, count: int) -> CanaryLaw:
    """The law of ``count`` canaries in a run of ``recipe``."""
    correlated = recipe.coefficients is not None or recipe.matrix is not None
    in_passes = recipe.batches is Batches.BALLS_AND_BINS
    law: CanaryLaw = (CorrelatedLaw if correlated else OncePerPassLaw if in_passes else EachStepLaw)(recipe, count)
    return law


def participation_phrase(recipe: TrainingSettings) -> str:
    """A phrase, to follow "each canary", on the steps in which a canary of a run of ``recipe`` takes part."""
    if recipe.coefficients is not None:
        return "is of the first part of the data, and is drawn by a coin in each of its turns"
    if recipe.matrix is not None:
        return "is used in the first step of each pass"
    if recipe.batches is Batches.BALLS_AND_BINS:
        return "is in one random step of each pass, like a record or a user"
    if recipe.group is not None:
        return (
            f"is a user of {recipe.group} records, each drawn into a step by a coin of its own, whose gradients point "
            "the same way"
        )
    if recipe.largest_batch is not None:
        return (
            "is drawn and cut like a record, and takes the place of one with the opposite gradient where a batch is "
            "full; no record is cut for it, so canaries show the noise, not which records are kept"
        )
    return "is drawn into a step by a coin, like a record or a user"


@dataclass(frozen=True, slots=True)
class _Mixture:
    """The law of a canary's shift of a sum: ``shifts`` in clip norms, with log-probabilities ``logs``."""

    shifts: Floats
    logs: Floats

    def drawn(self, uniforms: Floats) -> Floats:
        """Shifts (n,) drawn from the law by inversion of ``uniforms`` (n,) in [0, 1)."""
        ends = np.cumsum(np.exp(self.logs))[:-1]
        return self.shifts[np.searchsorted(ends, uniforms, side="right")]

    @property
    def square(self) -> float:
        """The mean square of a shift."""
        return float(np.exp(self.logs) @ self.shifts**2)

    def ratios(self, seen: Floats, stated: float) -> Floats:
        """Log-likelihood ratios of ``seen`` between this law and no shift, with the noise shown, at most ``stated``."""
        noise = noise_shown(seen, self.square, stated)
        total: Floats = np.full(len(seen), -math.inf)
        for shift, log in zip(self.shifts, self.logs, strict=True):
            np.logaddexp(total, log + (2 * shift * seen - shift * shift) / (2 * noise * noise), out=total)
        return total


def _one_draw(rate: float, shift: float = 1.0) -> _Mixture:
    if rate == 1:
        return _Mixture(np.array([shift]), np.zeros(1))
    return _Mixture(np.array([0.0, shift]), np.log([1 - rate, rate]))


def _several_draws(rate: float, number: int) -> _Mixture:
    law = poisson_binomial((rate,) * number)
    return _Mixture(law.shifts, np.log(law.weights))


class EachStepLaw:
    """Canaries that are sampled in every step, with independent noise in each step; see ``CanaryLaw``."""

    def __init__(self, recipe: TrainingSettings, count: int) -> None:
        rate = recipe.sample_rate
        self._noise, self._rate, self._count = recipe.sum_noise_multiplier, rate, count
        self._usual = _one_draw(rate) if recipe.group is None else _several_draws(rate, recipe.group)
        self._now = self._usual
        self._scores: Floats = np.zeros(count)

    def amounts(self, step: int, coins: Coins, batches: BatchSource | None) -> Floats:
        """See ``CanaryLaw``."""
        self._now = self._usual
        if isinstance(batches, TruncatedPoisson) and (others := batches.others(step)) >= batches.largest:
            self._now = _one_draw(self._rate * batches.largest / (others + 1), 2.0)
        return self._now.drawn(coins(step).random(self._count))

    def observe(self, step: int, released: Floats) -> None:
        """See ``CanaryLaw``."""
        self._scores += self._now.ratios(released, self._noise)

    def scores(self) -> Floats:
        """See ``CanaryLaw``."""
        return self._scores

    def tensors(self) -> dict[str, Tensor]:
        """See ``CanaryLaw``."""
        return {_SCORES: torch.from_numpy(self._scores.copy())}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """See ``CanaryLaw``."""
        self._scores = tensors[_SCORES].cpu().numpy().copy()


class OncePerPassLaw:
    """Canaries in one random step of each pass, with independent noise in each step; see ``CanaryLaw``."""

    def __init__(self, recipe: TrainingSettings, count: int) -> None:
        self._noise, self._bins, self._count = recipe.sum_noise_multiplier, recipe.steps_per_epoch, count
        self._scores: Floats = np.zeros(count)  # of the completed passes
        self._total: Floats = np.full(count, -math.inf)  # logarithm of the sum of this pass's ratios
        self._seen = self._pass = 0

    def amounts(self, step: int, coins: Coins, batches: BatchSource | None) -> Floats:
        """See ``CanaryLaw``."""
        chosen = coins(step // self._bins).integers(self._bins, size=self._count)
        return np.asarray(chosen == step % self._bins, dtype=np.float64)

    def observe(self, step: int, released: Floats) -> None:
        """See ``CanaryLaw``."""
        if step // self._bins != self._pass:
            self._scores = self.scores()
            self._total, self._seen, self._pass = np.full(self._count, -math.inf), 0, step // self._bins
        noise = noise_shown(released, 1 / self._bins, self._noise)
        self._total = np.logaddexp(self._total, (2 * released - 1) / (2 * noise**2))
        self._seen += 1

    def scores(self) -> Floats:
        """See ``CanaryLaw``; a step that was not observed, or is still to come, has the ratio 1."""
        unseen = self._bins - self._seen
        log_unseen = math.log(unseen) if unseen else -math.inf
        return np.asarray(self._scores + np.logaddexp(self._total, log_unseen) - math.log(self._bins))

    def tensors(self) -> dict[str, Tensor]:
        """See ``CanaryLaw``."""
        return {
            _SCORES: torch.from_numpy(self._scores.copy()),
            "total": torch.from_numpy(self._total.copy()),
            "pass": torch.tensor([self._pass, self._seen]),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """See ``CanaryLaw``."""
        self._scores, self._total = (tensors[name].cpu().numpy().copy() for name in (_SCORES, "total"))
        self._pass, self._seen = tensors["pass"].tolist()


class _BandedRows:
    """Multiplies a banded C by columns that arrive row by row; keeps the last ``bands - 1`` rows."""

    def __init__(self, coefficients: Sequence[float], width: int) -> None:
        self._first, self._later = coefficients[0], np.array(coefficients[1:])
        self.held: Floats = np.zeros((len(self._later), width))

    def row(self, lost: int, latest: Floats) -> Floats:
        """The row of the product for the new row ``latest``, before which ``lost`` rows were lost."""
        kept = len(self.held)
        remembered = np.concatenate([np.zeros((min(lost, kept), len(latest))), self.held])[:kept]
        self.held = np.concatenate([latest[None], remembered])[:kept]
        return np.asarray(self._first * latest + self._later @ remembered)


class _BufferedRows:
    """The same for a C given by buffers; keeps one row for each buffer."""

    def __init__(self, matrix: BufferedMatrix, width: int) -> None:
        self._first, self._weights = matrix.first, np.array(matrix.weights)
        self._decays = np.array(matrix.decays)[:, None]
        self.held: Floats = np.zeros((len(matrix.decays), width))

    def row(self, lost: int, latest: Floats) -> Floats:
        remembered = self._decays**lost * self.held
        self.held = self._decays * remembered + latest
        return np.asarray(self._first * latest + self._weights @ remembered)


class CorrelatedLaw:
    """Canaries that take part at fixed intervals of steps, with correlated noise; see ``CanaryLaw``.

    With bands, no row of C mixes two turns, so each turn is a subsampled Gaussian with a ratio of its own. Buffers mix
    all turns, but a canary takes part in each with certainty, so together they are one Gaussian. Memory is a few
    numbers per canary, however many steps there are: rows of what was released, and a turn's inner product with the
    rows that a canary adds, in units of the noise.
    """

    def __init__(self, recipe: TrainingSettings, count: int) -> None:
        self._noise, self._count = recipe.sum_noise_multiplier, count
        self._rows: _BandedRows | _BufferedRows
        if recipe.matrix is not None:
            self._interval, self._one_turn, rate = recipe.steps_per_epoch, True, 1.0
            self._rows = _BufferedRows(recipe.matrix, count + 1)
        else:
            self._interval, self._one_turn, rate = recipe.bands, False, min(1.0, recipe.sample_rate * recipe.bands)
            self._rows = _BandedRows(recipe.coefficients or (), count + 1)
        self._rate = rate
        self._scores: Floats = np.zeros(count)  # of the completed turns
        self._product: Floats = np.zeros(count)
        self._length = 0.0
        self._next = 0

    def amounts(self, step: int, coins: Coins, batches: BatchSource | None) -> Floats:
        """See ``CanaryLaw``."""
        if step % self._interval:
            return np.zeros(self._count)
        return (coins(step).random(self._count) < self._rate).astype(np.float64)

    def observe(self, step: int, released: Floats) -> None:
        """See ``CanaryLaw``."""
        if self._turn(step) != self._turn(max(0, self._next - 1)):
            self._scores = self.scores()
            self._product, self._length = np.zeros(self._count), 0.0
        # The last column is the canary's own release without noise, which gives what it adds to the rows.
        row = self._rows.row(step - self._next, np.append(released, float(step % self._interval == 0)))
        self._next = step + 1
        observed, added = row[:-1], float(row[-1])
        noise = noise_shown(observed, self._rate * added * added, self._noise)
        self._product = self._product + added * observed / noise**2
        self._length += (added / noise) ** 2

    def scores(self) -> Floats:
        """See ``CanaryLaw``."""
        growth = self._product - self._length / 2
        absent = math.log1p(-self._rate) if self._rate < 1 else -math.inf
        return np.asarray(self._scores + np.logaddexp(absent, math.log(self._rate) + growth))

    def tensors(self) -> dict[str, Tensor]:
        """See ``CanaryLaw``."""
        return {
            _SCORES: torch.from_numpy(self._scores.copy()),
            "product": torch.from_numpy(self._product.copy()),
            "length": torch.tensor(self._length, dtype=torch.float64),
            "rows": torch.from_numpy(self._rows.held.copy()),
            "next": torch.tensor(self._next),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """See ``CanaryLaw``."""
        self._scores, self._product, self._rows.held = (
            tensors[name].cpu().numpy().copy() for name in (_SCORES, "product", "rows")
        )
        self._length, self._next = float(tensors["length"]), int(tensors["next"])

    def _turn(self, step: int) -> int:
        return 0 if self._one_turn else step // self._interval
