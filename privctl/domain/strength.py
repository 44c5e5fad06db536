"""How much a guarantee rules out: the fraction of records that an attacker may still identify under it."""

from __future__ import annotations

import math
from enum import StrEnum
from statistics import NormalDist

from privctl.domain.guarantee import Guarantee, Notion, PrivacyUnit, RiskMeasure, Status
from privctl.domain.mechanism import ClippedTraining, Mechanism, Regime, WeightNoise

#: The false positive rate at which attackers are compared.
FALSE_POSITIVES = 0.01
#: A guarantee that allows this true positive rate is not worth the name.
USELESS_RATE = 0.9
#: Assumptions that another program's training loop did what its report says, which privctl did not observe. Such a
#: guarantee counts only for a gate whose policy names them, and gets no tag.
OF_OTHER_LOOPS = frozenset({"own loop", "reported ledger"})


class Severity(StrEnum):
    """What a guarantee is worth, or what an attack found; sets the colour in text, pages and cards.

    ``GOOD``: proved and strong. ``FAIR``: the same, conditional on assumptions that nothing enforces. ``WEAK``: not
    proved, or only under a property of the loss that nobody stated; for attacks, a small leak. ``BAD``: refuted or
    nearly vacuous; for attacks, a leak. ``VOID``: an assumption is violated. ``NONE``: there is nothing to judge.
    """

    GOOD = "good"
    FAIR = "fair"
    WEAK = "weak"
    BAD = "bad"
    VOID = "void"
    NONE = "none"


def severity(guarantee: Guarantee | None, mechanism: Mechanism | None) -> Severity:
    """What ``guarantee`` of a model made by ``mechanism`` is worth, by its status and by what it rules out."""
    if guarantee is None:
        return Severity.NONE
    fallen = {Status.REFUTED: Severity.BAD, Status.VOID: Severity.VOID, Status.CLAIMED: Severity.WEAK}
    if guarantee.status in fallen:
        return fallen[guarantee.status]
    noise = mechanism if isinstance(mechanism, WeightNoise) else None
    rate = largest_true_positive_rate(guarantee, one_gaussian=noise is not None)
    if rate is not None and rate >= USELESS_RATE:
        return Severity.BAD
    if noise is not None and rests_on_unstated_loss(guarantee, noise):
        return Severity.WEAK
    return Severity.GOOD if guarantee.status is Status.PROVED else Severity.FAIR


def largest_true_positive_rate(guarantee: Guarantee, *, one_gaussian: bool) -> float | None:
    """An upper bound on the true positive rate at 1 % false positives; None if the notion of privacy gives none.

    ``one_gaussian`` says that the mechanism is a single Gaussian release, for which the bound is
    Phi(Phi^-1(0.01) + 1 / noise multiplier) (Dong, Roth and Su 2022, section 2.3); otherwise it is
    e^epsilon * 0.01 + delta, at most 1.
    """
    stated = [
        r.bound for r in guarantee.risks if r.measure is RiskMeasure.TRUE_POSITIVE_RATE and r.at == FALSE_POSITIVES
    ]
    if stated:
        return min(stated)
    if guarantee.notion is not Notion.APPROXIMATE_DP or guarantee.unit is not PrivacyUnit.EXAMPLE:
        return None
    if guarantee.epsilon is None:
        return 1.0
    if one_gaussian and guarantee.noise_multiplier:
        normal = NormalDist()
        return normal.cdf(normal.inv_cdf(FALSE_POSITIVES) + 1 / guarantee.noise_multiplier)
    return min(1.0, math.exp(min(guarantee.epsilon, 700.0)) * FALSE_POSITIVES + guarantee.delta)


def is_useful(guarantee: Guarantee) -> bool:
    """Whether the guarantee of a single Gaussian release stands and keeps the true positive rate below USELESS_RATE."""
    rate = largest_true_positive_rate(guarantee, one_gaussian=True)
    return guarantee.status in (Status.PROVED, Status.CONDITIONAL) and rate is not None and rate < USELESS_RATE


def stated_regimes(training: ClippedTraining, regime: Regime | None) -> frozenset[Regime]:
    """The regimes whose bounds follow from what was stated about the loss; NONCONVEX, which is any loss, always does.

    ``regime`` is the one that the noise was calibrated for, None for the published formula. A strongly convex loss is
    also convex.
    """
    stated = {Regime.NONCONVEX, *(() if regime is None else (regime,))}
    if training.smoothness is not None:
        stated.add(Regime.SMOOTH)
    if training.strong_convexity is not None or Regime.STRONGLY_CONVEX in stated:
        stated |= {Regime.STRONGLY_CONVEX, Regime.CONVEX}
    return frozenset(stated)


def rests_on_unstated_loss(guarantee: Guarantee, noise: WeightNoise) -> bool:
    """Whether ``guarantee`` is the bound of a regime that nobody stated for the loss."""
    regimes = {str(regime) for regime in Regime}
    stated = set() if noise.training is None else {str(r) for r in stated_regimes(noise.training, noise.regime)}
    return guarantee.name in regimes - stated
