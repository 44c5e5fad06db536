"""Guarantees: numbers that never travel without what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.checks import at_least, fraction, positive, probability
from privctl.domain.notebook import Shown


class Notion(StrEnum):
    """The definition of privacy that the numbers instantiate."""

    APPROXIMATE_DP = "approximate-dp"
    MUTUAL_INFORMATION = "mutual-information"
    SECRET_PROTECTION = "secret-protection"  # noqa: S105 - a notion of privacy


class PrivacyUnit(StrEnum):
    """Whose presence is protected."""

    EXAMPLE = "example"
    SECRET = "secret"  # noqa: S105 - a unit of privacy


class Adjacency(StrEnum):
    """Which two data sets must look alike.

    ``ADD_OR_REMOVE`` is one example more or less, ``REPLACE_ONE`` one example's content. ``ZERO_OUT`` replaces one
    example's gradient by zero while the batch's normaliser stays; it stands for add-or-remove where the normaliser is
    fixed.
    """

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"
    UNSTATED = "unstated"


class Scope(StrEnum):
    """Which released files one guarantee speaks of."""

    THIS_MODEL = "this-model"
    ALL_CANDIDATES = "all-candidates"


class Status(StrEnum):
    """How far a guarantee is established."""

    PROVED = "proved"
    CONDITIONAL = "conditional"
    CLAIMED = "claimed"
    REFUTED = "refuted"
    VOID = "void"


class AssumptionState(StrEnum):
    """Who stands behind an assumption."""

    ENFORCED = "enforced"
    CHECKED = "checked"
    ASSERTED = "asserted"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One condition a guarantee rests on."""

    name: str
    statement: str
    state: AssumptionState


def status_of(assumptions: Sequence[Assumption]) -> Status:
    """``proved`` only where every assumption is enforced or checked; ``void`` where one is violated."""
    states = {assumption.state for assumption in assumptions}
    if AssumptionState.VIOLATED in states:
        return Status.VOID
    return Status.CONDITIONAL if AssumptionState.ASSERTED in states else Status.PROVED


class RiskMeasure(StrEnum):
    """What an attacker might achieve.

    ``ADVANTAGE`` is true minus false positive rate of telling whether one example was used, ``TRUE_POSITIVE_RATE`` is
    at a given false positive rate, ``POSTERIOR`` the probability of naming a secret right from a given prior.
    """

    ADVANTAGE = "advantage"
    TRUE_POSITIVE_RATE = "true-positive-rate"
    POSTERIOR = "posterior"
    AUC = "auc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """The most any attacker can achieve; ``at`` is the false positive rate or the prior where the measure has one."""

    measure: RiskMeasure
    bound: float
    at: float | None = None

    def __post_init__(self) -> None:
        probability("bound", self.bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """How far a guarantee reaches below real arithmetic: to the numbers that were written.

    ``coordinates`` numbers were released, each the nearest point of a public grid of fewer than ``steps`` steps a noise
    standard deviation; each pair of deviates is within ``accuracy`` of its radius from an exact one. ``epsilon`` is
    what that adds, and is part of the guarantee's.
    """

    coordinates: int
    accuracy: float
    steps: float
    epsilon: float

    def __post_init__(self) -> None:
        at_least("coordinates", self.coordinates, 1)
        for name in ("accuracy", "steps"):
            positive(name, getattr(self, name))
        at_least("epsilon", self.epsilon, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee(Shown):
    """A privacy bound with everything needed to weigh it.

    ``epsilon`` is that of (epsilon, delta)-DP, or nats of information under the other notions; None means that no
    finite bound follows. ``follows`` is the epsilon that is proved for the same noise, where ``epsilon`` comes from
    elsewhere; ``floor`` is one below which no epsilon holds. ``risks`` say what it means for an attacker.
    ``sensitivity`` is the L2 sensitivity the bound used, in the units of what was released; ``noise_multiplier`` is
    noise standard deviation / sensitivity. Without ``arithmetic`` the bound is for noise in real arithmetic.
    """

    name: str
    epsilon: float | None
    delta: float
    adjacency: Adjacency
    accountant: str
    status: Status
    notion: Notion = Notion.APPROXIMATE_DP
    unit: PrivacyUnit = PrivacyUnit.EXAMPLE
    scope: Scope = Scope.THIS_MODEL
    sensitivity: float | None = None
    noise_multiplier: float | None = None
    assumptions: tuple[Assumption, ...] = ()
    note: str = ""
    risks: tuple[Risk, ...] = ()
    follows: float | None = None
    floor: float | None = None
    arithmetic: Arithmetic | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            at_least("epsilon", self.epsilon, 0)
        fraction("delta", self.delta, zero=True)
