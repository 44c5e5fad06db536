"""Evidence from exposures and completions, by number of copies, for included and left-out canaries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from audits.canaries import skewnormal
from audits.canaries.completion import Completion
from audits.canaries.exposure import fisher
from audits.canaries.manifest import Manifest
from audits.statistics.metrics import CLOPPER_PEARSON, clopper_pearson
from privctl.domain.evidence import Bound, Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.canaries.scores import CanaryScores

EXPOSURE = "canary exposure"
COMPLETION = "canary completion"
EXTRAPOLATION = "canary exposure, extrapolated"
#: Where the limits of an extrapolated exposure come from, as its distribution is a guess.
BY_RANK = f"{CLOPPER_PEARSON}, by rank; at most the bits of all secrets"

#: The maximum number of reference classes to which a distribution is fitted.
_FITTED = 16
#: The error of the lower limit, for all sets of references together. The audit's confidence does not include it.
_ALPHA = 0.1
#: A fit with a smaller p-value is flagged as poor.
_POOR = 1e-3
_MODEL = "a model of the tail, not a measurement"


def sides(manifest: Manifest) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The sets of canaries that are reported, with their names: the included ones by copies, then all left out."""
    included = np.array([canary.included for canary in manifest.canaries])
    copies = np.array([canary.copies for canary in manifest.canaries])
    for number in sorted(set(copies.tolist())):
        yield f"included, {number} {'copy' if number == 1 else 'copies'}", included & (copies == number)
    yield "left out", ~included


def exposures_by_copies(manifest: Manifest, scores: CanaryScores) -> list[Evidence]:
    """The median exposure of each side, with mean and maximum; without memorization the median is about 1 bit.

    ``p_value_of_max`` is the Bonferroni-corrected p-value of the side's highest exposure.
    """
    evidence = []
    for name, side in sides(manifest):
        values = scores.exposure[side & scores.scored]
        details: dict[str, float] = {}
        if len(values):
            details = {
                "mean": float(values.mean()),
                "max": float(values.max()),
                "p_value_of_max": min(1.0, len(values) * 2.0 ** -float(values.max())),
                "ceiling": float(np.log2(scores.among[side & scores.scored].max())),
            }
        evidence.append(
            Evidence(
                method=EXPOSURE,
                quantity=f"median bits, {name}",
                estimate=float(np.median(values)) if len(values) else None,
                bound=Bound.NONE,
                samples={"canaries": len(values)},
                details=details,
                reason="" if len(values) else "there is no such canary with a score",
            )
        )
    return evidence


def leak_tests(manifest: Manifest, scores: CanaryScores, alpha: float) -> list[Evidence]:
    """Tests of whether any included canary leaked and, as a control, any left-out one, which the model cannot know.

    Each test has half of ``alpha``. ``detected`` is 1 if its p-value is at most that. ``deviation`` is the standard
    deviation of the exposures, which is larger than without memorization (``without_memorization``) if some canaries
    are memorized more than others.
    """
    included = np.array([canary.included for canary in manifest.canaries])
    evidence = []
    for name, side in (("included", included), ("left out (control)", ~included)):
        groups = []
        for peers in scores.peers:
            members = peers.members[side[peers.members]]
            if len(members):
                groups.append((scores.exposure[members], peers.references))
        count = sum(len(exposures) for exposures, _ in groups)
        p_value = fisher(groups) if groups else 1.0
        values = np.concatenate([exposures for exposures, _ in groups]) if groups else np.zeros(0)
        evidence.append(
            Evidence(
                method=EXPOSURE,
                quantity=f"mean bits, {name}",
                estimate=float(values.mean()) if count else None,
                confidence=1 - alpha / 2,
                bound=Bound.NONE,
                interval="Fisher's test with Brown's correction",
                samples={"canaries": count},
                details={
                    "p_value": p_value,
                    "level": alpha / 2,
                    "effective": sum(
                        len(exposures) / (1 + (len(exposures) - 1) / n if n else 1) for exposures, n in groups
                    ),
                    "detected": float(p_value <= alpha / 2),
                    "without_memorization": 1 / math.log(2),
                    **({"deviation": float(values.std(ddof=1))} if count > 1 else {}),
                },
                reason="" if count else "there is no such canary with a score",
            )
        )
    return evidence


def completions(manifest: Manifest, scores: CanaryScores, alpha: float) -> list[Evidence]:
    """The fraction of each side's canaries that the model completes greedily; all intervals share ``alpha``.

    Near ties widen the interval: they count as safe for its lower end and as disclosed for its upper end.
    """
    alpha_each = alpha / sum(1 for _ in sides(manifest))
    evidence = []
    for name, side in sides(manifest):
        states = scores.completion[side & scores.scored]
        count = len(states)
        disclosed = int((states == Completion.DISCLOSED).sum())
        undecided = int((states == Completion.UNDECIDED).sum())
        evidence.append(
            Evidence(
                method=COMPLETION,
                quantity=f"disclosed, {name}",
                estimate=disclosed / count if count else None,
                lower=clopper_pearson(disclosed, count, alpha_each)[0] if count else None,
                upper=clopper_pearson(disclosed + undecided, count, alpha_each)[1] if count else None,
                confidence=1 - alpha_each,
                interval=CLOPPER_PEARSON,
                samples={"canaries": count},
                details={
                    "chance": 0.0,  # there are too many secrets for a lucky guess
                    "disclosed": disclosed,
                    "undecided": undecided,
                    "safe": count - disclosed - undecided,
                },
                reason="" if count else "there is no such canary with a score",
            )
        )
    return evidence


def extrapolation(manifest: Manifest, scores: CanaryScores) -> tuple[list[Evidence], NDArray[np.float64]]:
    """The highest extrapolated exposure, and the extrapolated exposure of each canary (-1 if there is none).

    Computed only if exposure reaches its ceiling and there are enough references to fit a distribution. No test or
    bound uses it. Its limits hold whatever the distribution of losses: see ``least_bits``, with an equal share of the
    error for each set of references, and the bits of all secrets.
    """
    beyond = np.full(len(manifest.canaries), -1.0)
    highest: list[tuple[float, float, float, float, int]] = []
    at_ceiling = scores.exposure >= np.log2(np.maximum(scores.among, 1)) - 1e-9
    drawn = [peers for peers in scores.peers if not peers.exact]
    sampled = [p for p in drawn if at_ceiling[p.members].any() and p.losses.std() > 0]
    fit = [peers for peers in sampled if len(peers.losses) >= skewnormal.FEWEST][:_FITTED]
    for peers in fit:
        members = peers.members[at_ceiling[peers.members]]
        law = skewnormal.extrapolate(scores.nll[members], peers.losses, cap=peers.bits, alpha=_ALPHA / len(drawn))
        beyond[members] = law.bits
        highest.append((float(law.bits.max()), law.lower, law.p_value, peers.bits, len(peers.losses)))
    if not highest:
        return [], beyond
    bits, lower, p_value, cap, references = max(highest)
    return [
        Evidence(
            method=EXTRAPOLATION,
            quantity="highest bits",
            estimate=bits,
            lower=lower,
            upper=cap,
            confidence=1 - _ALPHA,
            interval=BY_RANK,
            samples={"canaries": int((beyond >= 0).sum())},
            details={
                "extrapolated": 1,
                "fit_p_value": p_value,
                "references": references,
                "sets": len(drawn),
                "laws": len(highest),
                "without_law": len(sampled) - len(fit),
            },
            reason="the fitted law does not describe the references" if p_value < _POOR else _MODEL,
        )
    ], beyond
