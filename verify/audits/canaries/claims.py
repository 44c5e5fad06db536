"""Whether verdicts on (epsilon, delta) claims follow from the counts of correct guesses on canaries.

Standard library only.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from verify.audits.canaries.bounds import LEAST_STEP, chances_of, either_rejected, single_record_bounds
from verify.audits.canaries.half_noise import gaussian_chance
from verify.audits.ranks.bound import METHOD as RANK
from verify.audits.ranks.threshold import METHOD as THRESHOLD
from verify.audits.terms import CLAIM, CLAIMED, counts_of

#: What a consistent claim must be told from, and how often, less what six digits of the claim may change.
_VIOLATION, _POWER = 2.0, 0.79
_ONE_RUN = "one run"
_LARGEST_MU, _HALVINGS = 200.0, 80


def wrong_claims(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence for each verdict on an (epsilon, delta) claim that the counts of correct guesses contradict.

    The subject states a claim with six digits only, so counts that are close to it contradict neither verdict.
    """
    bounds = list(single_record_bounds(report))
    tested = bool(bounds) or any(map(_tests_elsewhere, report.evidence))
    for verdict in report.verdicts:
        stated = CLAIM.match(verdict.subject)
        if stated is not None and not tested and verdict.outcome is not Outcome.INCONCLUSIVE:
            yield f"its verdict on {verdict.subject!r} is {verdict.outcome}, but nothing that it measured tests that"
        if stated is None or not bounds:
            continue
        epsilon, delta = float(stated[1]), float(stated[2])
        refuted = any(_rejects(item, epsilon * (1 + CLAIMED) + LEAST_STEP, delta * (1 + CLAIMED)) for item in bounds)
        possible = any(_rejects(item, epsilon * (1 - CLAIMED) - LEAST_STEP, delta * (1 - CLAIMED)) for item in bounds)
        outcomes = [each.outcome for each in report.verdicts if each.subject == verdict.subject]
        if refuted and Outcome.REFUTED not in outcomes:
            yield f"its verdict on {verdict.subject!r} is {verdict.outcome}, but its counts refute that"
        elif verdict.outcome in (Outcome.CONSISTENT, Outcome.PROVED):
            if verdict.outcome is Outcome.PROVED or not _would_tell(bounds, epsilon, delta):
                yield (
                    f"its verdict on {verdict.subject!r} is {verdict.outcome}, but even a model of twice that epsilon "
                    "would hardly have been told by so many guesses"
                )
        elif verdict.outcome is Outcome.REFUTED and not possible:
            yield f"its verdict on {verdict.subject!r} is {verdict.outcome}, but its counts do not refute that"


def _tests_elsewhere(item: Evidence) -> bool:
    """Whether verdicts on claims may be by ``item`` and by no bound above: by many models, or by an older audit."""
    older = item.method.startswith(_ONE_RUN) and item.lower is not None and item.details.get("copies", 1) == 1
    return item.method in (RANK, THRESHOLD) or older


def _rejects(item: Evidence, epsilon: float, delta: float) -> bool:
    share = (1 - item.confidence) / item.details["sets"]
    return any(either_rejected(counts, max(0.0, epsilon), delta, share) for counts in counts_of(item))


def _would_tell(bounds: Sequence[Evidence], epsilon: float, delta: float) -> bool:
    """Whether twice the claimed epsilon would refute the claim with probability 0.8, or nearly.

    An audit calls a claim consistent only if this holds of randomized response and of Gaussian noise, each with its
    best set of guesses; where delta is 0, of randomized response alone.
    """
    mu, claim = _mu_of(_VIOLATION * epsilon, delta) if delta else None, epsilon * (1 - CLAIMED)
    of_response = of_gaussian = 0.0
    for item in bounds:
        share = (1 - item.confidence) / item.details["sets"]
        for canaries, guesses, _ in counts_of(item):

            def rejects(right: int, canaries: int = canaries, guesses: int = guesses, share: float = share) -> bool:
                return either_rejected((canaries, guesses, right), claim, delta * (1 - CLAIMED), share)

            if rejects(guesses):
                fewest = 1 + bisect_left(range(1, guesses), True, key=rejects)
                of_response = max(of_response, math.fsum(chances_of(guesses, _VIOLATION * epsilon)[fewest:]))
                if mu is not None:
                    of_gaussian = max(of_gaussian, gaussian_chance(fewest, canaries, guesses, mu))
    return of_response >= _POWER and (mu is None or of_gaussian >= _POWER)


def _mu_of(epsilon: float, delta: float) -> float:
    """The mu of a Gaussian mechanism that has this epsilon at ``delta``."""
    low, high = 0.0, _LARGEST_MU
    for _ in range(_HALVINGS):
        mu = (low + high) / 2
        low, high = (low, mu) if _delta_of(mu, epsilon) >= delta else (mu, high)
    return high


def _delta_of(mu: float, epsilon: float) -> float:
    """Delta of a Gaussian mechanism at ``epsilon``; Balle and Wang 2018, theorem 8."""
    above, below = (math.erfc((epsilon / mu + side * mu / 2) / math.sqrt(2)) / 2 for side in (-1, 1))
    return above - math.exp(epsilon + math.log(below)) if below else above
