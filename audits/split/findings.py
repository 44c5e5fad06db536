"""What a drawn split shows about epsilon: bounds, and verdicts on claims about the audited model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from audits.canaries.bounds import EITHER, curve_parameters, not_made
from audits.canaries.verdict import claims, curves
from audits.claims import DEFAULT_DELTA, CurveClaim, EpsilonClaim, subject_of
from audits.findings import Findings
from audits.split.bounds import DrawnScores
from audits.split.drawn import DrawnSplit
from audits.split.implied import examples_of_a_coin, of_a_coin, why_not_judged
from privctl.domain.evidence import Evidence
from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The name of the omission if nothing is bounded.
NO_BOUNDS = "bounds from the split"
#: With fewer coins there are no bounds.
_FEWEST = 2
_MORE, _MORE_GROUPS = "split more records (privctl audit split", "draw more groups (privctl audit split --group-by {}"


def split_findings(
    drawn: DrawnScores,
    scores: Mapping[str, NDArray[np.float64]],
    *,
    trained_on: Sequence[str] | None,
    claimed: Sequence[EpsilonClaim],
    curve: CurveClaim | None,
    delta: float | None,
    alpha: float,
) -> Findings:
    """Bounds by the ``scores`` [records] of each attack, jointly wrong with ``alpha``, and verdicts on the claims.

    None of the scores may depend on the coins. ``delta`` defaults to the first claim's, or 1e-5. ``trained_on`` are the
    digests of the data named by the model's report, None without a report; with other data than the split's, there is
    no bound. ``curve`` is for as many examples as a coin changes; claims are for one example and tested for as many as
    a coin changes.
    """
    split = drawn.split
    if len(split.included) < _FEWEST or not scores:
        reason = "no attack that was asked for scores each record" if not scores else "fewer than two lines occur once"
        return Findings(omissions=(Omission(what=NO_BOUNDS, reason=reason),))
    if delta is None:
        delta = claimed[0].delta if claimed else DEFAULT_DELTA
    bounds = drawn.bounds(scores, delta, alpha, reason=_other_data(split, trained_on))
    return Findings(
        evidence=bounds,
        verdicts=(*_claim_verdicts(bounds, claimed, split), *curves(bounds, curve)),
        warnings=tuple(guesses_not_made(bounds)),
        parameters=curve_parameters(curve),
    )


def _claim_verdicts(
    bounds: Sequence[Evidence], claimed: Sequence[EpsilonClaim], split: DrawnSplit
) -> Iterator[Verdict]:
    """The verdict on each claim, for as many of its examples as a coin changes."""
    more = _MORE if split.group_by is None else _MORE_GROUPS.format(split.group_by)
    for claim in claimed:
        examples = examples_of_a_coin(split, claim.unit, fixed_graph=claim.fixed_graph)
        if examples is None:
            subject = f"({claim.epsilon:g}, {claim.delta:g})-DP for values of {claim.unit!r}, {claim.source}"
            yield Verdict(subject=subject, outcome=Outcome.INCONCLUSIVE, reason=why_not_judged(claim, split))
            continue
        implied = of_a_coin(claim, examples)
        if implied.delta < 1:
            yield from claims(bounds, [implied], more=more)
        else:
            reason = f"by group privacy it promises nothing for {examples} examples together: their delta is 1"
            yield Verdict(subject=subject_of(implied), outcome=Outcome.INCONCLUSIVE, reason=reason)


def _other_data(split: DrawnSplit, trained_on: Sequence[str] | None) -> str:
    if trained_on is None or set(trained_on) == {split.trained_on.digest}:
        return ""
    return f"the model's report names other training data than {split.trained_on.name} of the split"


def guesses_not_made(bounds: Sequence[Evidence]) -> Iterator[str]:
    """A warning if scores did not determine all guesses."""
    missing = sum(not_made(item) for item in bounds if item.method == EITHER and item.lower is not None)
    if missing:
        yield (
            f"{counted(missing, 'guess was', 'guesses were')} not made for the bounds, because scores were tied or "
            "missing; they count as wrong"
        )
