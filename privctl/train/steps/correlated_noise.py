"""Gaussian noise that is correlated from step to step, so that it cancels in part where steps add up.

With coefficients c and sums x_t, what is released is, up to a function of what was released before,
y_t = c_0 x_t + c_1 x_(t-1) + ... + c_(b-1) x_(t-b+1) + z_t with fresh noise z_t: rows of C X + Z
(docs/mechanisms.md#correlated-noise). Let r_t = x_t + w_t be the noisy sum that the optimizer gets. Then

    c_0 r_t = y_t - (c_1 r_(t-1) + ... ) = c_0 x_t - (c_1 w_(t-1) + ... + c_(b-1) w_(t-b+1)) + z_t,

so that w = C^-1 z. The right-hand side is what the grid rounds: y_t less a number that is public, so rounding it is
post-processing as it is without correlation, and w_t = r_t - x_t holds the rounding too. Of earlier steps only w is
kept, in float64, in which its errors are some 2^-53 of the noise. It must stay secret: r_t - w_t is x_t.

Where each process holds a shard of every tensor, this is done entry by entry: it keeps the noise of its shards.

After a gap, whose steps began and whose noise is lost, w counts as 0 there: that sets to 0 the entries of C below the
diagonal in the columns of those steps, by which no column gets longer or reaches further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from privctl.domain.errors import InputError
from privctl.train.steps.gradient_noise import GradientNoise

#: Makes of a kept tensor, and the number of the gradient that it belongs to, what is saved of it, or the reverse.
Part = Callable[[int, Tensor], Tensor]
_PREFIX = "noise."
_NEXT, _COEFFICIENTS = _PREFIX + "next", _PREFIX + "coefficients"


def all_of_it(_index: int, tensor: Tensor) -> Tensor:
    """The ``Part`` of a process that holds whole gradients."""
    return tensor


def release_less(
    fresh: GradientNoise,
    gradients: Sequence[Tensor],
    first: float,
    held: Iterable[tuple[float, Sequence[Tensor] | None]],
    stddev: float,
    step: int,
) -> list[Tensor]:
    """Release ``gradients`` with noise w of which ``first`` * w and the tensors ``held``, each times its factor, are z.

    z is the noise of ``fresh`` with ``stddev``. Gives w in float64, rounding of what is released included.
    """
    sums = [gradient.to(torch.float64, copy=True) for gradient in gradients]
    combined = [first * each for each in sums]
    for factor, noise in held:
        for place, each in zip(combined, noise or (), strict=bool(noise)):
            place.sub_(each.to(place.device), alpha=factor)
    fresh.release(combined, stddev, step)
    for gradient, each, exact in zip(gradients, combined, sums, strict=True):
        each.div_(first)
        gradient.copy_(each)
        torch.sub(each, exact, out=each)
    return combined


class CorrelatedNoise:
    """The noise of ``fresh``, correlated by ``coefficients``; see ``GradientNoise``.

    It keeps the noise of as many steps as there are coefficients, less one, at eight bytes a number.
    """

    def __init__(self, fresh: GradientNoise, coefficients: Sequence[float]) -> None:
        self._fresh, self._coefficients = fresh, tuple(coefficients)
        self._history: list[list[Tensor] | None] = []  # of the last step first; None where nothing is known
        self._next = 0

    @property
    def description(self) -> str:
        """See ``GradientNoise``."""
        return self._fresh.description

    @property
    def cryptographic(self) -> bool:
        """See ``GradientNoise``."""
        return self._fresh.cryptographic

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        """See ``GradientNoise``; ``stddev`` is that of z in one step, and the same tensors come in every step."""
        gradients = list(tensors)
        self._pass_over(step)
        held = zip(self._coefficients[1:], self._history, strict=False)
        combined = release_less(self._fresh, gradients, self._coefficients[0], held, stddev, step)
        self._keep(combined)

    def tensors(self, as_saved: Part = all_of_it) -> dict[str, Tensor]:
        """What a run that goes on needs: secret, as it gives away the sums without noise."""
        kept = {
            f"{_PREFIX}{age}.{place}": as_saved(place, each)
            for age, noise in enumerate(self._history)
            for place, each in enumerate(noise or ())
        }
        return kept | {
            _NEXT: torch.tensor(self._next),
            _COEFFICIENTS: torch.tensor(self._coefficients, dtype=torch.float64),
        }

    def restore(self, tensors: Mapping[str, Tensor], own_part: Part = all_of_it) -> None:
        """Continue from ``tensors``, if the run was saved. Raises InputError where they are of another run."""
        if _NEXT not in tensors:
            return
        if tensors[_COEFFICIENTS].tolist() != list(self._coefficients):
            raise InputError("the saved noise was correlated in another way; resume with the settings of the run")
        self._next = int(tensors[_NEXT])
        self._history = [None] * (len(self._coefficients) - 1)
        for name in sorted(tensors.keys() - {_NEXT, _COEFFICIENTS}, key=_numbers):
            if name.startswith(_PREFIX):
                age, place = _numbers(name)
                kept = self._history[age] or []
                self._history[age] = [*kept, own_part(place, tensors[name])]

    def _pass_over(self, step: int) -> None:
        """Steps between the last one and ``step`` began and are lost."""
        for _ in range(min(max(0, step - self._next), len(self._coefficients) - 1)):
            self._keep(None)
        self._next = step + 1

    def _keep(self, noise: list[Tensor] | None) -> None:
        self._history = [noise, *self._history][: len(self._coefficients) - 1]


def _numbers(name: str) -> tuple[int, int]:
    """Age and place of a kept tensor, by its name; (-1, -1) for what is none."""
    if not name.startswith(_PREFIX):
        return -1, -1
    age, place = name.removeprefix(_PREFIX).split(".")
    return int(age), int(place)
