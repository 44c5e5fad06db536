"""Gaussian noise that is correlated from step to step and partly cancels in the sum over steps.

With coefficients c and sums x_t, what is released is, up to a function of earlier releases,
y_t = c_0 x_t + c_1 x_(t-1) + ... + c_(b-1) x_(t-b+1) + z_t with fresh noise z_t: rows of C X + Z
(docs/mechanisms.md#correlated-noise). Let r_t = x_t + w_t be the noisy sum that the optimizer gets. Then

    c_0 r_t = y_t - (c_1 r_(t-1) + ... ) = c_0 x_t - (c_1 w_(t-1) + ... + c_(b-1) w_(t-b+1)) + z_t,

so that w = C^-1 z. The right-hand side is what is rounded onto the grid: y_t minus a public number, so the rounding is
post-processing, as without correlation, and w_t = r_t - x_t includes the rounding. Of earlier steps only w is kept, in
float64, with errors of some 2^-53 of the noise. It must stay secret, as r_t - w_t is x_t.

If tensors are sharded over processes, each process does this for its shards and keeps their noise.

Steps that began but whose noise was lost count with w = 0. This sets the entries of C below the diagonal to 0 in the
columns of those steps, which makes no column longer in norm and adds no nonzero entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from privctl.domain.errors import InputError
from privctl.train.steps.gradient_noise import GradientNoise

#: Converts a kept tensor, given the index of its gradient, to the form in which it is saved, or back.
Part = Callable[[int, Tensor], Tensor]
_PREFIX = "noise."
_NEXT, _COEFFICIENTS = _PREFIX + "next", _PREFIX + "coefficients"


def unsharded(_index: int, tensor: Tensor) -> Tensor:
    """The ``Part`` of a process that holds whole gradients."""
    return tensor


def release_correlated(
    fresh: GradientNoise,
    gradients: Sequence[Tensor],
    first: float,
    held: Iterable[tuple[float, Sequence[Tensor] | None]],
    stddev: float,
    step: int,
) -> list[Tensor]:
    """Release ``gradients`` with noise w such that ``first`` * w plus the ``held`` (factor, noise) products is z.

    z is the noise of ``fresh`` with ``stddev``. Returns w in float64, including the rounding of what is released.
    """
    sums = [gradient.to(torch.float64, copy=True) for gradient in gradients]
    combined = [first * tensor for tensor in sums]
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

    Keeps the noise of the last ``len(coefficients) - 1`` steps in float64.
    """

    def __init__(self, fresh: GradientNoise, coefficients: Sequence[float]) -> None:
        self._fresh, self._coefficients = fresh, tuple(coefficients)
        self._history: list[list[Tensor] | None] = []  # latest step first; None for a step whose noise was lost
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
        """See ``GradientNoise``; ``stddev`` is that of z in one step, and every step must pass the same tensors."""
        gradients = list(tensors)
        self._skip_lost(step)
        weighted = zip(self._coefficients[1:], self._history, strict=False)
        combined = release_correlated(self._fresh, gradients, self._coefficients[0], weighted, stddev, step)
        self._keep(combined)

    def tensors(self, as_saved: Part = unsharded) -> dict[str, Tensor]:
        """What a resumed run needs; it is secret, as it reveals the sums without noise."""
        kept = {
            f"{_PREFIX}{age}.{index}": as_saved(index, tensor)
            for age, noise in enumerate(self._history)
            for index, tensor in enumerate(noise or ())
        }
        return kept | {
            _NEXT: torch.tensor(self._next),
            _COEFFICIENTS: torch.tensor(self._coefficients, dtype=torch.float64),
        }

    def restore(self, tensors: Mapping[str, Tensor], own_part: Part = unsharded) -> None:
        """Continue from ``tensors`` if they hold a saved state. Raises InputError if they are from another run."""
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

    def _skip_lost(self, step: int) -> None:
        """Record the steps between the last one and ``step``, whose noise was lost."""
        for _ in range(min(max(0, step - self._next), len(self._coefficients) - 1)):
            self._keep(None)
        self._next = step + 1

    def _keep(self, noise: list[Tensor] | None) -> None:
        self._history = [noise, *self._history][: len(self._coefficients) - 1]


def _numbers(name: str) -> tuple[int, int]:
    """The age and gradient index in a kept tensor's name; (-1, -1) for other names."""
    if not name.startswith(_PREFIX):
        return -1, -1
    age, place = name.removeprefix(_PREFIX).split(".")
    return int(age), int(place)
