"""The result of ``privctl retrain --dry-run``: what a training run would do and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The ``amount`` of noise that a training run needs for ``epsilon``; None if no amount suffices."""

    epsilon: float
    amount: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserBound:
    """A limit of ``most`` records per user: the records used under each rule, and the ``amount`` for ``epsilon``.

    None if a rule does not allow such data, or no run is possible with them.
    """

    most: int
    records: Mapping[str, int | None]
    amount: float | None = None
    epsilon: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A training run that has not begun.

    ``records`` counts the units that are sampled; ``unit`` names them if one holds several records. ``trained`` counts
    the trainable parameters. ``amount_name`` says what the privacy budget sets: a noise multiplier, or the method's
    equivalent; empty for a method without a budget. ``amount`` is this run's value; ``budgets`` compares a few budgets,
    and ``user_bounds`` a few limits on records per user. ``epsilon`` at ``delta`` is what the run will state, in nats
    of mutual information if ``delta`` is None; None if it states none. ``signal`` is the largest possible sum of all
    gradients over the standard deviation of all noise along one direction, ``per_number`` the same over the norm of the
    noise; both are None without noise.

    ``seconds`` is the expected time of all steps, measured on steps with synthetic records; evaluation and checks are
    not included. ``memory`` is the peak in bytes, of the accelerator if there is one, else of the process. On a CPU,
    ``gpu_memory`` is the size of the tensors alone, which a GPU would hold in addition to what its libraries need.
    ``warnings`` are sentences.
    """

    method: str
    records: int
    unit: str = ""
    trained: int
    steps: int
    batch_size: float
    sampling_rate: float
    amount_name: str = ""
    amount: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    signal: float | None = None
    per_number: float | None = None
    budgets: tuple[Budget, ...] = ()
    user_bounds: tuple[UserBound, ...] = ()
    seconds: float
    memory: int
    gpu_memory: int | None = None
    device: str
    warnings: tuple[str, ...] = ()
