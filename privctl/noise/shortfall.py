"""Why a release may not be called private: no bound that holds for the loss, as far as known, is strong enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privctl.domain.guarantee import AssumptionState, Guarantee, Scope, Status
from privctl.domain.mechanism import Calibration, ClippedTraining, Regime
from privctl.domain.shown import upward
from privctl.domain.strength import is_useful, largest_true_positive_rate, stated_regimes
from privctl.noise.dp_weights import PUBLISHED, PrivacyTarget

#: The beginning of the warning, in reports and in the terminal.
USELESS = "NO USEFUL GUARANTEE"
_NOT_PRIVATE = "Do not call this model private"
_RETRAIN = "for a neural network, train again with privctl retrain dp-sgd"
_MORE_NOISE = {
    Calibration.DP_WEIGHTS: f"{_NOT_PRIVATE}. For noise that meets an epsilon, remove --calibration published, "
    f"and name what is known of the loss by --regime (nonconvex: any); {_RETRAIN}",
    Calibration.GAUSSIAN: f"{_NOT_PRIVATE}. Ask for a smaller --epsilon, and name what is known of the loss by "
    f"--regime; {_RETRAIN}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why no useful guarantee follows for a candidate, in one sentence, and what to do about it."""

    reason: str
    advice: str


#: For noise whose standard deviation was given.
NOTHING_CLAIMED = Shortfall(
    reason=f"{USELESS}: the standard deviation was given, and without facts of the training nothing follows from it",
    advice=f"{_NOT_PRIVATE}. To learn what noise guarantees, state how the model was trained instead of --noise-stddev",
)


def shortfall(training: ClippedTraining, target: PrivacyTarget, guarantees: Sequence[Guarantee]) -> Shortfall | None:
    """Why no useful guarantee follows for this candidate; None if one does.

    Those that count are the ``guarantees`` for any loss, and those of regimes that the user stated for the loss, by
    the calibration's regime or by giving its smoothness or strong convexity.
    """
    regimes = stated_regimes(training, target.regime if target.calibration is Calibration.GAUSSIAN else None)
    names = {str(regime) for regime in regimes}
    following = [
        g for g in guarantees if g.name in names and g.scope is Scope.THIS_MODEL and g.adjacency is target.adjacency
    ]
    if any(is_useful(guarantee) for guarantee in following):
        return None
    if all(guarantee.status is Status.VOID for guarantee in following):
        violated = dict.fromkeys(
            a.name for g in following for a in g.assumptions if a.state is AssumptionState.VIOLATED
        )
        reason = f"{USELESS}: what every bound assumes is violated ({', '.join(violated)})"
        return Shortfall(reason=reason, advice=_NOT_PRIVATE)
    best = min(following, key=lambda g: float("inf") if g.epsilon is None else g.epsilon)
    rate = largest_true_positive_rate(best, one_gaussian=True)
    assert rate is not None  # a regime's bound is on approximate DP for one example
    loss = "any loss" if best.name == Regime.NONCONVEX else f"a {best.name} loss"
    amount = "no finite epsilon follows" if best.epsilon is None else f"epsilon is {upward(best.epsilon)}"
    text = (
        f"{USELESS}: for {loss}, {amount} at delta {upward(best.delta)}, by which an attacker may find "
        f"{upward(100 * rate, 3)} % of the training records at 1 % false positives"
    )
    claims = any(guarantee.name == PUBLISHED for guarantee in guarantees)
    if claims:
        text += f"; the published epsilon {target.epsilon:g} does not follow"
    return Shortfall(reason=text, advice=_MORE_NOISE[target.calibration])
