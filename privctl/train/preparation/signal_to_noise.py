"""Whether a private training can learn anything: the most that all examples can say, against the noise of all steps.

A step adds up at most ``batch`` gradients of norm C, so its sum is at most C batch long, and adds noise of standard
deviation sigma C to every number. Over T steps the sums are at most T C batch long, and the noise along any one
direction, even the best one and known beforehand, has the standard deviation sqrt(T) sigma C. Their ratio is
mu = sqrt(T) batch / sigma. Below 1 the whole training is mu-GDP for *all examples together* (Dong, Roth and Su 2022,
group privacy of a batch, composed over the steps): whoever guesses whether the model was trained on these data or on
none is right at most Phi(mu / 2) of the time, 0.69 at mu = 1. A model that can hardly be told from one without data has
learned nothing from them.

With correlated noise (``--bands``, ``--buffers``), everything is made of the rows of M X + Z, where M is the matrix
that correlates it and Z fresh noise. With r_t the sum of row t of M, that row of M X is at most r_t C batch long, so
the length of the vector r takes the place of sqrt(T).

The noise has d dimensions, so its length is sqrt(T d) sigma C. Where that is far more than all gradients together can
be long, the weights mostly walk at random; that is a warning and no theorem, as a random walk need not hurt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from privctl.accounting.buffered import sensitivity
from privctl.train.settings.recipe import TrainingSettings

#: Below this, the model can hardly be told from one that was trained on nothing.
NOTHING = 1.0
#: Below this, the noise is more than ten times as long as all gradients together can be.
LITTLE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalToNoise:
    """``steps`` sums of at most ``batch`` clipped gradients of ``numbers`` entries, under a ``noise_multiplier``.

    ``length`` is that of the row sums of the matrix that correlates the noise, sqrt(steps) where nothing does.
    """

    steps: int
    batch: float
    noise_multiplier: float
    numbers: int
    length: float | None = None

    @property
    def along(self) -> float:
        """All gradients over the noise, along the best direction: mu of the module's docstring."""
        length = math.sqrt(self.steps) if self.length is None else self.length
        return length * self.batch / self.noise_multiplier

    @property
    def in_length(self) -> float:
        """All gradients over the length of the noise in all dimensions."""
        return self.along / math.sqrt(max(1, self.numbers))


def signal_to_noise(recipe: TrainingSettings, numbers: int) -> SignalToNoise:
    """That of a run by ``recipe``, which has noise, with so many trained ``numbers``."""
    return SignalToNoise(
        steps=recipe.steps,
        batch=recipe.batch_size,
        noise_multiplier=recipe.sum_noise_multiplier,
        numbers=numbers,
        length=_length(recipe),
    )


def _length(recipe: TrainingSettings) -> float | None:
    if recipe.matrix is not None:
        return sensitivity(recipe.matrix, 1, recipe.steps)  # of a record that takes part in every step
    if recipe.coefficients is None:
        return None
    sums = list(accumulate(recipe.coefficients))[: recipe.steps]
    return math.sqrt(math.fsum(each * each for each in sums) + (recipe.steps - len(sums)) * sums[-1] ** 2)


def too_little(ratio: SignalToNoise) -> Iterator[str]:
    """A warning where nothing, or little, can be learned."""
    shown = f"noise multiplier {ratio.noise_multiplier:.4g}"
    if ratio.along < NOTHING:
        yield (
            f"nothing can be learned with {shown}: the gradients of all steps together are at most {ratio.along:.2g} "
            "times the noise along any one direction, so the model can hardly be told from one trained on no data; "
            "raise --epsilon, or train on more data"
        )
    elif ratio.in_length < LITTLE:
        yield (
            f"little may be learned with {shown}: the noise moves the {ratio.numbers} trained numbers "
            f"{1 / ratio.in_length:.0f} times as far as the gradients of all steps together can; raise --epsilon, "
            "train on more data, or train fewer numbers (--train, --lora-rank)"
        )


def signs_too_random(signs: int, log_odds: float) -> Iterator[str]:
    """A warning where randomized ``signs`` can hardly be told from coins.

    A sign with the odds e^b is right with probability 1 / 2 + tanh(b / 2) / 2, so that all of them differ from coins by
    at most sqrt(signs) tanh(b / 2) standard deviations.
    """
    apart = math.sqrt(signs) * math.tanh(log_odds / 2)
    if apart < NOTHING:
        yield (
            f"nothing can be learned with log-odds {log_odds:.4g}: {signs} signs differ from coins by at most "
            f"{apart:.2g} standard deviations; raise --epsilon, or train on more data"
        )
