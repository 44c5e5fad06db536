"""In which steps canary gradients take part, and what the releases say of each: one law for each kind of run.

A canary is the record, or the user, for which the accountant's bound is stated, in the place where it shows most:

- *Poisson batches*: it is drawn into each step by a coin. A user whose records are clipped one by one is so many
  records, each with a coin of its own, whose gradients all point the same way.
- *Batches that are cut*: M other records are drawn. Of M below the largest size B nothing is cut. Else the canary is
  drawn and kept with probability q B / (M + 1), and takes the place of a record whose gradient is the opposite: it
  moves the sum by two clip norms. No record is cut for it.
- *Balls and bins*: it is in one step of each pass, chosen uniformly.
- *Bands*: it is of the first part of the data, and drawn by a coin in each turn of that part.
- *Buffers*: it is used in the first step of each pass.

Correlated noise is independent in the rows of C times what is released, so these are looked at. Of steps that began and
were lost nothing was seen; what was released in them counts as 0, as their noise does (``steps.correlated_noise``).
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

#: Makes of a number a source of draws.
Coins = Callable[[int], np.random.Generator]
_SCORES = "every_step"


class CanaryLaw(Protocol):
    """How canaries take part and what was seen of them; arrays are [canaries], numbers in a canary's clip norms."""

    def amounts(self, step: int, coins: Coins, batches: BatchSource | None) -> Floats:
        """By how much each canary moves the sum of ``step``, were it included; ``batches`` are those of the records.

        ``coins`` gives, for each number, draws of their own, and for the same number the same ones.
        """
        ...

    def observe(self, step: int, released: Floats) -> None:
        """Take in each canary's number of what ``step`` released; ``amounts`` was asked for that step before."""
        ...

    def scores(self) -> Floats:
        """The log-likelihood ratio of all that was seen, of a canary that is included to one that is not."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a run that goes on needs."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what ``tensors`` gave."""
        ...


def law_of(recipe: TrainingSettings, count: int) -> CanaryLaw:
    """The law of ``count`` canaries in a run of ``recipe``."""
    correlated = recipe.coefficients is not None or recipe.matrix is not None
    in_passes = recipe.batches is Batches.BALLS_AND_BINS
    made: CanaryLaw = (InTurns if correlated else OnceAPass if in_passes else EachStep)(recipe, count)
    return made


def described(recipe: TrainingSettings) -> str:
    """In which steps a canary of a run of ``recipe`` takes part, after "each canary"."""
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
    """Moves a sum by each of ``shifts``, in clip norms, with the probability of these ``logs``."""

    shifts: Floats
    logs: Floats

    def drawn(self, uniforms: Floats) -> Floats:
        ends = np.cumsum(np.exp(self.logs))[:-1]
        return self.shifts[np.searchsorted(ends, uniforms, side="right")]

    def ratios(self, seen: Floats, noise: float) -> Floats:
        """Log-likelihood ratios of ``seen``, with noise of this standard deviation, to no shift."""
        total: Floats = np.full(len(seen), -math.inf)
        for shift, log in zip(self.shifts, self.logs, strict=True):
            np.logaddexp(total, log + (2 * shift * seen - shift * shift) / (2 * noise * noise), out=total)
        return total


def _by_coin(rate: float, shift: float = 1.0) -> _Mixture:
    if rate == 1:
        return _Mixture(np.array([shift]), np.zeros(1))
    return _Mixture(np.array([0.0, shift]), np.log([1 - rate, rate]))


def _by_coins(rate: float, number: int) -> _Mixture:
    law = poisson_binomial((rate,) * number)
    return _Mixture(law.shifts, np.log(law.weights))


class EachStep:
    """Canaries with coins in every step, whose noise is that step's own; see ``CanaryLaw``."""

    def __init__(self, recipe: TrainingSettings, count: int) -> None:
        rate = recipe.sample_rate
        self._noise, self._rate, self._count = recipe.sum_noise_multiplier, rate, count
        self._usual = _by_coin(rate) if recipe.group is None else _by_coins(rate, recipe.group)
        self._now = self._usual
        self._scores: Floats = np.zeros(count)

    def amounts(self, step: int, coins: Coins, batches: BatchSource | None) -> Floats:
        """See ``CanaryLaw``."""
        self._now = self._usual
        if isinstance(batches, TruncatedPoisson) and (others := batches.others(step)) >= batches.largest:
            self._now = _by_coin(self._rate * batches.largest / (others + 1), 2.0)
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


class OnceAPass:
    """Canaries in one random step of each pass, whose noise is that step's own; see ``CanaryLaw``."""

    def __init__(self, recipe: TrainingSettings, count: int) -> None:
        self._noise, self._bins, self._count = recipe.sum_noise_multiplier, recipe.steps_per_epoch, count
        self._scores: Floats = np.zeros(count)  # of the passes that are over
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
        self._total = np.logaddexp(self._total, (2 * released - 1) / (2 * self._noise**2))
        self._seen += 1

    def scores(self) -> Floats:
        """See ``CanaryLaw``; a step that was not seen, or is yet to come, has the ratio 1."""
        others = self._bins - self._seen
        unseen = math.log(others) if others else -math.inf
        return np.asarray(self._scores + np.logaddexp(self._total, unseen) - math.log(self._bins))

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
    """Rows of a banded C times columns that come row by row; it keeps one row less than there are bands."""

    def __init__(self, coefficients: Sequence[float], width: int) -> None:
        self._first, self._later = coefficients[0], np.array(coefficients[1:])
        self.held: Floats = np.zeros((len(self._later), width))

    def row(self, lost: int, came: Floats) -> Floats:
        """The row to which ``came`` belongs, which so many that are ``lost`` come before."""
        kept = len(self.held)
        held = np.concatenate([np.zeros((min(lost, kept), len(came))), self.held])[:kept]
        self.held = np.concatenate([came[None], held])[:kept]
        return np.asarray(self._first * came + self._later @ held)


class _BufferedRows:
    """The same of a C of buffers, of which it keeps one row each."""

    def __init__(self, matrix: BufferedMatrix, width: int) -> None:
        self._first, self._weights = matrix.first, np.array(matrix.weights)
        self._decays = np.array(matrix.decays)[:, None]
        self.held: Floats = np.zeros((len(matrix.decays), width))

    def row(self, lost: int, came: Floats) -> Floats:
        held = self._decays**lost * self.held
        self.held = self._decays * held + came
        return np.asarray(self._first * came + self._weights @ held)


class InTurns:
    """Canaries in every so many steps, whose noise is correlated from step to step; see ``CanaryLaw``.

    No row holds two turns of banded noise, so each turn is a sampled Gaussian and its ratio is by itself. Buffers mix
    all turns, in which a canary surely takes part: they are one Gaussian. What is kept is a few numbers a canary,
    however many steps there are: rows of what was released, and a turn's product with what a canary adds to the rows.
    """

    def __init__(self, recipe: TrainingSettings, count: int) -> None:
        self._noise, self._count = recipe.sum_noise_multiplier, count
        self._rows: _BandedRows | _BufferedRows
        if recipe.matrix is not None:
            self._apart, self._together, rate = recipe.steps_per_epoch, True, 1.0
            self._rows = _BufferedRows(recipe.matrix, count + 1)
        else:
            self._apart, self._together, rate = recipe.bands, False, min(1.0, recipe.sample_rate * recipe.bands)
            self._rows = _BandedRows(recipe.coefficients or (), count + 1)
        self._rate = rate
        self._scores: Floats = np.zeros(count)  # of the turns that are over
        self._product: Floats = np.zeros(count)
        self._length = 0.0
        self._next = 0

    def amounts(self, step: int, coins: Coins, batches: BatchSource | None) -> Floats:
        """See ``CanaryLaw``."""
        if step % self._apart:
            return np.zeros(self._count)
        return (coins(step).random(self._count) < self._rate).astype(np.float64)

    def observe(self, step: int, released: Floats) -> None:
        """See ``CanaryLaw``."""
        if self._turn(step) != self._turn(max(0, self._next - 1)):
            self._scores = self.scores()
            self._product, self._length = np.zeros(self._count), 0.0
        # The last column is that of a canary that takes part: what it adds to the rows.
        row = self._rows.row(step - self._next, np.append(released, float(step % self._apart == 0)))
        self._next = step + 1
        seen, moved = row[:-1], float(row[-1])
        self._product = self._product + moved * seen
        self._length += moved * moved

    def scores(self) -> Floats:
        """See ``CanaryLaw``."""
        growth = (2 * self._product - self._length) / (2 * self._noise**2)
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
        return 0 if self._together else step // self._apart
