"""The methods that are compared, the grid of epochs and epsilons, and the order of the runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from examples.harness.running import shuffled

#: The settings for tuning learning rates, which are then used in the whole grid.
TUNED_EPSILON, TUNED_EPOCHS, TUNED_SEED = 1.0, 3, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method: its options of ``privctl retrain``, and the learning rates to choose among.

    Its batch size is ``batch_factor`` times that of the other methods. ``groups`` is the number of groups of tensors
    where it is so small that it limits what can be published.
    """

    label: str
    options: tuple[str, ...]
    rates: tuple[float, ...]
    default_rate: float
    private: bool = True
    nats: bool = False
    batch_factor: int = 1
    groups: int | None = None


def _ferret(label: str, *options: str, nats: bool = True, groups: int | None = None) -> Method:
    return Method(
        label=label,
        options=("ferret", *options),
        rates=(5e-4, 1e-3, 2e-3),
        default_rate=1e-3,
        nats=nats,
        groups=groups,
    )


METHODS: Mapping[str, Method] = {
    "plain": Method(label="plain", options=("plain",), rates=(5e-4, 1e-3, 2e-3), default_rate=1e-3, private=False),
    "dp-sgd": Method(label="DP-SGD", options=("dp-sgd",), rates=(3e-4, 1e-3, 3e-3), default_rate=1e-3),
    "dp-sgd-large": Method(
        label="DP-SGD, batches 10 times as large",
        options=("dp-sgd",),
        rates=(2e-3, 4e-3, 8e-3),
        default_rate=4e-3,
        batch_factor=10,
    ),
    "ferret-max": _ferret("FERRET-MAX", "--groups", "max"),
    "ferret-eighth": _ferret("FERRET-EIGHTH", "--groups", "eighth"),
    "ferret-2": _ferret("FERRET-2", "--groups", "2", groups=2),
    "ferret-gaussian": _ferret("FERRET-MAX, Gaussian release", "--groups", "max", "--release", "gaussian", nats=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training of the grid; ``epsilon`` is None for a method without a budget."""

    method: str
    epochs: int
    epsilon: float | None
    seed: int

    @property
    def key(self) -> str:
        """A name for the files of this cell."""
        budget = "" if self.epsilon is None else f"-eps{self.epsilon:g}"
        return f"{self.method}-{self.epochs}{budget}-seed{self.seed}"


def grid(methods: Sequence[str], epochs: Sequence[int], epsilons: Sequence[float], seeds: int) -> list[Cell]:
    """Every cell, shuffled within a seed, including those that cannot be run; see ``left_out``."""
    return shuffled(
        seeds,
        lambda seed: [
            Cell(method=method, epochs=passes, epsilon=epsilon, seed=seed)
            for method in methods
            for passes in epochs
            for epsilon in (epsilons if METHODS[method].private else (None,))
        ],
    )


def left_out(cell: Cell) -> str | None:
    """Why a cell cannot be run; None if it can.

    A group publishes at most one bit, ln 2 nats, per record and epoch. So few groups may publish less than the budget
    even if all publish in every step.
    """
    groups = METHODS[cell.method].groups
    if groups is None or cell.epsilon is None or (most := groups * cell.epochs * math.log(2)) >= cell.epsilon:
        return None
    return f"{METHODS[cell.method].label} at {cell.epsilon:g} nats: {cell.epochs} x {groups} bits are {most:.3g} nats"


def tuning(methods: Iterable[str]) -> list[tuple[Cell, float]]:
    """The trainings for choosing each method's learning rate, as pairs of a cell and a rate."""
    return [
        (
            Cell(
                method=method,
                epochs=TUNED_EPOCHS,
                epsilon=TUNED_EPSILON if METHODS[method].private else None,
                seed=TUNED_SEED,
            ),
            rate,
        )
        for method in methods
        for rate in METHODS[method].rates
    ]
