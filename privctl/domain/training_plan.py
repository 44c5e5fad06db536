"""What ``privctl retrain --dry-run`` answers: a training before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The ``amount`` of noise that a training needs for ``epsilon``; None where no amount meets it."""

    epsilon: float
    amount: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserBound:
    """At ``most`` so many records of a user: how many are used by each rule, and at which ``amount`` for ``epsilon``.

    None where a rule takes no such data, or no run can be made of them.
    """

    most: int
    records: Mapping[str, int | None]
    amount: float | None = None
    epsilon: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A training that has not begun.

    ``records`` are the units that are sampled; where one holds several records, ``unit`` says which. ``trained`` the
    numbers that a step may change. ``amount_name`` says what a budget buys: a noise multiplier, or what the method has
    in its place; empty for a method without budget. ``amount`` is the run's own, and ``budgets`` compares a few;
    ``user_bounds`` compares bounds on users. ``epsilon`` at ``delta`` is what the run will state, in nats of mutual
    information where ``delta`` is None; None where it states none. ``signal`` is the largest sum of all gradients over
    the standard deviation of all noise along one direction, ``per_number`` the same over the length of the noise; None
    without noise.

    ``seconds`` are expected for all steps, from steps on made-up records; evaluation and checks are not included.
    ``memory`` is the peak in bytes meanwhile, of the accelerator where there is one, else of the process. On a CPU
    ``gpu_memory`` are the bytes of its tensors alone, which a GPU would hold beside what libraries need for themselves.
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
