"""Guarantees: privacy bounds together with the assumptions they rest on."""

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
    """Which data sets are neighbours.

    ``ADD_OR_REMOVE``: one example more or less. ``REPLACE_ONE``: one example's content changes. ``ZERO_OUT``: one
    example's gradient becomes zero while the batch's normaliser stays, which amounts to add-or-remove if the normaliser
    is fixed.
    """

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"
    UNSTATED = "unstated"


class Scope(StrEnum):
    """Which released files a guarantee covers."""

    THIS_MODEL = "this-model"
    ALL_CANDIDATES = "all-candidates"


class Status(StrEnum):
    """How far a guarantee is established."""

    PROVED = "proved"
    CONDITIONAL = "conditional"
    CLAIMED = "claimed"
    REFUTED = "refuted"
    VOID = "void"


#: Those of a guarantee that may be relied on, given its assumptions.
STANDING = (Status.PROVED, Status.CONDITIONAL)


class AssumptionState(StrEnum):
    """How an assumption is backed."""

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
    """``void`` if an assumption is violated, ``proved`` if all are enforced or checked, else ``conditional``."""
    states = {assumption.state for assumption in assumptions}
    if AssumptionState.VIOLATED in states:
        return Status.VOID
    return Status.CONDITIONAL if AssumptionState.ASSERTED in states else Status.PROVED


class RiskMeasure(StrEnum):
    """What an attacker might achieve.

    ``ADVANTAGE`` is the true minus the false positive rate of membership inference on one example,
    ``TRUE_POSITIVE_RATE`` is at a given false positive rate, and ``POSTERIOR`` is the probability of guessing a secret
    correctly from a given prior.
    """

    ADVANTAGE = "advantage"
    TRUE_POSITIVE_RATE = "true-positive-rate"
    POSTERIOR = "posterior"
    AUC = "auc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """The most any attacker can achieve; ``at`` is the false positive rate or the prior if the measure has one."""

    measure: RiskMeasure
    bound: float
    at: float | None = None

    def __post_init__(self) -> None:
        probability("bound", self.bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The cost of finite precision: the guarantee then covers the numbers written, not only real arithmetic.

    ``coordinates`` numbers were released, each rounded to a public grid with fewer than ``steps`` steps per noise
    standard deviation; each pair of deviates is within ``accuracy`` times its radius of an exact pair. ``epsilon`` is
    what this adds and is included in the guarantee's epsilon.
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
    finite bound follows. If ``epsilon`` is a published claim, ``follows`` is the epsilon proved for the same noise.
    ``floor`` is a lower bound: no smaller epsilon holds. ``risks`` say what the bound means for an attacker.
    ``sensitivity`` is the L2 sensitivity that the bound used, in the units of what was released; ``noise_multiplier``
    is noise standard deviation / sensitivity. Without ``arithmetic`` the bound is for noise in real arithmetic.
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
