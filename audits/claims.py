"""Claims of differential privacy that an audit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from privctl.domain.errors import CommandError
from privctl.domain.events import (
    BandedGaussian,
    BestOfRuns,
    BufferedGaussian,
    Event,
    GroupGaussian,
    Ledger,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.domain.guarantee import Adjacency, Guarantee, Notion, PrivacyUnit, Scope, Status
from privctl.domain.verdict import Outcome, Verdict

#: A verdict is "consistent" only if a true epsilon this many times the claimed one would have been detected.
VIOLATION = 2.0
#: The delta of a bound if neither a claim nor an option states one.
DEFAULT_DELTA = 1e-5


#: A canary is either in the data or not. That does not bound the effect of replacing one record by another.
_WITH_OR_WITHOUT = (Adjacency.ADD_OR_REMOVE, Adjacency.ZERO_OUT)


#: The kinds of training steps whose noise is stated as a noise multiplier.
_NOISY = (SampledGaussian, BandedGaussian, BufferedGaussian, BestOfRuns, GroupGaussian, TruncatedGaussian)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonClaim:
    """The (``epsilon``, ``delta``)-DP, for adding or removing one example, that ``source`` claims.

    An example is a record, or all records with the same value of the field ``unit``. With a ``fixed_graph``, neighbours
    name the same users in the same records, so the claim does not cover data without some of these.
    """

    epsilon: float
    delta: float
    source: str = "as claimed"
    unit: str | None = None
    fixed_graph: bool = False


#: Pairs (epsilon, delta) that a mechanism satisfies jointly.
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFamily:
    """Steps of one kind with any noise multiplier, given as a share of ``stated``.

    ``points`` gives points of the trade-off curve for a share of the noise, ``epsilon`` the accountant's epsilon for a
    share and a delta. Either raises ArithmeticError or ValueError if it cannot be computed.
    """

    stated: float
    points: Callable[[float], Points]
    epsilon: Callable[[float, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveClaim:
    """The mechanism that a model was trained by according to ``source``, with (epsilon, delta) ``points`` of its curve.

    ``half`` are points for half of the noise, to compute an audit's power; empty if unknown. ``family`` is the
    mechanism with any noise; None if it is not computed.
    """

    mechanism: Ledger
    points: Points
    source: str
    half: Points = ()
    family: NoiseFamily | None = None


def claim_of(text: str | None) -> EpsilonClaim | None:
    """The claim ``EPS,DELTA``, if any. Raises CommandError if ``text`` is not a valid one."""
    if text is None:
        return None
    try:
        epsilon, delta = map(float, text.split(","))
    except ValueError:
        raise CommandError(f"--claim {text} is not an epsilon and a delta; give both, such as --claim 1,1e-5") from None
    if not (0 <= epsilon < float("inf") and 0 <= delta < 1):
        raise CommandError(
            f"--claim {text} is out of range; epsilon must be finite and at least 0, delta from 0 to below 1"
        )
    return EpsilonClaim(epsilon=epsilon, delta=delta)


def curve_subject(claim: CurveClaim) -> str:
    """The subject of a verdict on the mechanism itself."""
    events = ", then ".join(_event_text(event) for event in claim.mechanism.events)
    return f"({events}): the mechanism stated in {claim.source}"


def with_half_noise(mechanism: Ledger) -> Ledger:
    """``mechanism`` with half of the noise in each Gaussian event."""
    return with_noise(mechanism, 0.5)


def with_noise(mechanism: Ledger, share: float) -> Ledger:
    """``mechanism`` with the noise of each Gaussian event multiplied by ``share``."""
    events = (
        replace(event, noise_multiplier=event.noise_multiplier * share) if isinstance(event, _NOISY) else event
        for event in mechanism.events
    )
    return Ledger(events=tuple(events))


def noise_of(mechanism: Ledger) -> float | None:
    """The noise multiplier of a mechanism that is one kind of Gaussian steps; None for any other."""
    event = mechanism.events[0] if len(mechanism.events) == 1 else None
    return event.noise_multiplier if isinstance(event, _NOISY) else None


def _event_text(event: Event) -> str:
    if isinstance(event, SampledGaussian):
        return f"noise multiplier {event.noise_multiplier:.6g}, rate {event.sample_rate:.6g}, {event.steps} steps"
    if isinstance(event, GroupGaussian):
        return (
            f"noise multiplier {event.noise_multiplier:.6g}, rate {event.sample_rate:.6g}, {event.steps} steps, up to "
            f"{event.group_size} records of a user together"
        )
    if isinstance(event, TruncatedGaussian):
        return (
            f"noise multiplier {event.noise_multiplier:.6g}, rate {event.sample_rate:.6g}, {event.steps} steps of at "
            f"most {event.largest_batch} of {event.examples} examples"
        )
    if isinstance(event, BandedGaussian):
        return f"noise multiplier {event.noise_multiplier:.6g} over {event.bands} bands, {event.steps} steps"
    if isinstance(event, BufferedGaussian):
        return f"noise multiplier {event.noise_multiplier:.6g}, {event.buffers} buffers, {event.steps} steps"
    if isinstance(event, BestOfRuns):
        return (
            f"the best of a random number of runs, {event.mean_runs:g} on average: noise multiplier "
            f"{event.noise_multiplier:.6g}, rate {event.sample_rate:.6g}, {event.run_steps} steps"
        )
    return f"{event.tag}, {event.steps} steps"


def mechanism_of(mechanism: object, guarantees: Iterable[Guarantee]) -> Ledger | None:
    """The ledger that a report promises for adding or removing one record; None without such a promise."""
    if not isinstance(mechanism, Ledger) or not claims_of(guarantees, ""):
        return None
    return mechanism if mechanism.adjacency in _WITH_OR_WITHOUT else None


def subject_of(claim: EpsilonClaim) -> str:
    """The subject of a verdict on ``claim``."""
    return f"({claim.epsilon:g}, {claim.delta:g})-DP, {claim.source}"


def any_claim_refuted(verdicts: Iterable[Verdict]) -> bool:
    """Whether a claim was refuted. A leak alone does not refute a claim."""
    return any(verdict.outcome is Outcome.REFUTED and verdict.subject.startswith("(") for verdict in verdicts)


def claims_of(
    guarantees: Iterable[Guarantee], source: str, unit: str | None = None, *, fixed_graph: bool = False
) -> tuple[EpsilonClaim, ...]:
    """The distinct claims that a report's guarantees make about this model, for adding or removing one example.

    ``unit`` is the field whose values make the examples of its training, None if each record is one; ``fixed_graph``
    says that the training chose records depending on the users of all.
    """
    claims: dict[tuple[float, float], EpsilonClaim] = {}
    for guarantee in guarantees:
        applies = (
            guarantee.epsilon is not None
            and guarantee.notion is Notion.APPROXIMATE_DP
            and guarantee.unit is PrivacyUnit.EXAMPLE
            and guarantee.scope is Scope.THIS_MODEL
            and guarantee.adjacency in _WITH_OR_WITHOUT
            and guarantee.status is not Status.VOID
        )
        if applies and guarantee.epsilon is not None:
            claim = EpsilonClaim(
                epsilon=guarantee.epsilon,
                delta=guarantee.delta,
                source=f"{guarantee.status} in {source} ({guarantee.name}, {guarantee.adjacency})",
                unit=unit,
                fixed_graph=fixed_graph,
            )
            claims.setdefault((guarantee.epsilon, guarantee.delta), claim)
    return tuple(claims.values())
