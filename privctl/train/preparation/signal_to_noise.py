"""Whether a private run can learn anything: the largest possible sum of all gradients, compared with all noise.

A step sums at most ``batch`` gradients of norm at most C, so the norm of its sum is at most C batch, and adds noise of
standard deviation sigma C to every coordinate. Over T steps the norm of the sums is at most T C batch, and the noise
along any one direction, even the best one if it is known in advance, has the standard deviation sqrt(T) sigma C. The
ratio is mu = sqrt(T) batch / sigma. The whole run is mu-GDP for *all examples together* (Dong, Roth and Su 2022, group
privacy of a batch, composed over the steps): whoever guesses whether the model was trained on these data or on none is
right with probability at most Phi(mu / 2), 0.69 at mu = 1. A model that is nearly indistinguishable from one trained
without data has learned nothing from them.

With correlated noise (``--bands``, ``--buffers``), everything is computed from the rows of M X + Z, where M is the
matrix that correlates the noise and Z is independent noise. With r_t the sum of row t of M, the norm of that row of M X
is at most r_t C batch, so the norm of the vector r replaces sqrt(T).

In d dimensions the norm of the noise is sqrt(T d) sigma C. If that far exceeds the largest norm of the sum of all
gradients, the weights mostly follow a random walk. That is a warning and no theorem, as a random walk need not hurt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from privctl.accounting.buffered import sensitivity
from privctl.train.settings.recipe import TrainingSettings

#: Below this mu, the model is nearly indistinguishable from one that was trained without data.
LEARNS_NOTHING = 1.0
#: Below this, the norm of the noise is more than ten times the largest norm of the sum of all gradients.
LEARNS_LITTLE = 0.1
#: Up to this noise multiplier, batches twice as large, or twice as many epochs, of Poisson samples raise the ratio at
#: the same epsilon by 5 % or more. Beyond it, both require as much more noise as they add signal.
GROWS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalToNoise:
    """``steps`` sums of ``batch`` clipped gradients with ``numbers`` coordinates, with noise of ``noise_multiplier``.

    ``length`` is the norm of the row sums of the matrix that correlates the noise; None is sqrt(steps), for independent
    noise. ``sample_rate`` is that of the batches, 1 if they are the same whatever the options say.
    """

    steps: int
    batch: float
    noise_multiplier: float
    numbers: int
    length: float | None = None
    sample_rate: float = 1.0

    @property
    def along(self) -> float:
        """The ratio of all gradients to the noise along the best direction: mu of the module's docstring."""
        length = math.sqrt(self.steps) if self.length is None else self.length
        return length * self.batch / self.noise_multiplier

    @property
    def in_length(self) -> float:
        """The ratio of the norms of all gradients and of the noise in all dimensions."""
        return self.along / math.sqrt(max(1, self.numbers))

    @property
    def grows(self) -> bool:
        """Whether larger batches or more epochs raise the ratio at the same epsilon."""
        return self.sample_rate < 1 and self.noise_multiplier < GROWS


def signal_to_noise(recipe: TrainingSettings, numbers: int, *, planned: bool = False) -> SignalToNoise:
    """The ratio for a run with noise that trains ``numbers`` parameters by ``recipe``.

    ``planned``: a plan sets batches and steps.
    """
    return SignalToNoise(
        steps=recipe.steps,
        batch=recipe.batch_size,
        noise_multiplier=recipe.sum_noise_multiplier,
        numbers=numbers,
        length=_length(recipe),
        sample_rate=1.0 if planned else recipe.sample_rate,
    )


def _length(recipe: TrainingSettings) -> float | None:
    if recipe.matrix is not None:
        return sensitivity(recipe.matrix, 1, recipe.steps)  # for a record that takes part in every step
    if recipe.coefficients is None:
        return None
    sums = list(accumulate(recipe.coefficients))[: recipe.steps]
    return math.sqrt(math.fsum(norm * norm for norm in sums) + (recipe.steps - len(sums)) * sums[-1] ** 2)


def noise_warnings(ratio: SignalToNoise) -> Iterator[str]:
    """A warning if nothing or little can be learned."""
    shown = f"noise multiplier {ratio.noise_multiplier:.4g}"
    if ratio.along < LEARNS_NOTHING:
        yield (
            f"nothing can be learned with {shown}: the gradients of all steps together are at most {ratio.along:.2g} "
            "times the noise along any one direction, so the model can hardly be told from one trained on no data; "
            "raise --epsilon, or train on more data"
        )
    elif ratio.in_length < LEARNS_LITTLE:
        larger = "raise --batch-size or --epochs, which helps at the same epsilon, or " if ratio.grows else ""
        yield (
            f"little may be learned with {shown}: the noise moves the {ratio.numbers} trained numbers "
            f"{1 / ratio.in_length:.0f} times as far as the gradients of all steps together can; {larger}raise "
            "--epsilon, train on more data, or train fewer numbers (--train, --lora-rank)"
        )


def random_sign_warnings(signs: int, log_odds: float) -> Iterator[str]:
    """A warning if randomized ``signs`` are nearly indistinguishable from coin flips.

    A sign with odds e^b, where b is ``log_odds``, is right with probability 1 / 2 + tanh(b / 2) / 2, so all of them
    together differ from coin flips by at most sqrt(signs) tanh(b / 2) standard deviations.
    """
    apart = math.sqrt(signs) * math.tanh(log_odds / 2)
    if apart < LEARNS_NOTHING:
        yield (
            f"nothing can be learned with log-odds {log_odds:.4g}: {signs} signs differ from coins by at most "
            f"{apart:.2g} standard deviations; raise --epsilon, or train on more data"
        )
