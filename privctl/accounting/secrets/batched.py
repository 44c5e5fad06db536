"""Protection of many secrets at once: the information revealed about each, and the least noise that protects all.

The divergences are those of ``fano``. KL decreases with the noise multiplier (adding noise is data processing), so the
least noise for all secrets is the largest that any one needs. A secret with sum of probabilities s, T steps and D nats
needs at least s sqrt(T / (2 D)) in the reference form. So the noise is first solved for the secrets with the largest
s^2 / D; then every secret is checked, and those that exceed their budget are added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.secrets.count_laws import (
    Integers,
    LawBlock,
    average_levels,
    check_memberships,
    law_blocks,
    means_of,
)
from privctl.accounting.secrets.divergences import divergences
from privctl.accounting.secrets.fano import least_multiplier
from privctl.domain.checks import at_least, positive
from privctl.domain.progress import Advance, silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The most secrets solved for at first, and added in a round.
_SCREENED = 64
#: Relative margin below the budget when solving; larger than the difference between two bounds on one divergence.
_SLACK = 3e-11


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibratedNoise:
    """The least noise for all secrets: ``binding`` is the secret that needs it, at ``worst_ratio`` of its budget.

    ``informations`` [secrets] float64: bounds on the information that all steps reveal about each, in nats.
    """

    noise_multiplier: float
    binding: int
    worst_ratio: float
    informations: Floats


def informations(
    starts: Integers,
    records: Integers,
    probabilities: Floats,
    noise_multiplier: float,
    steps: int,
    *,
    pairwise: bool = False,
    advance: Advance = silent,
) -> Floats:
    """Upper bounds in nats on the information that all steps reveal about each secret: steps * KL; shape [secrets].

    Secret j is in the distinct records ``records[starts[j]:starts[j + 1]]`` (int64), and record i is in a batch with
    probability ``probabilities[i]`` (float64). The relative excess is below 1e-11, except where ``accounting.mixtures``
    is less accurate (thousands of records per batch with little noise). 0 for a secret whose records are never drawn.
    ``advance`` is called with the number of secrets done.

    Raises ValueError for probabilities outside [0, 1], and for anything else that is out of range.
    """
    check_memberships(starts, records, probabilities)
    positive("noise_multiplier", noise_multiplier)
    at_least("steps", steps, 1)
    return _informations(
        law_blocks(starts, records, probabilities, long=None if pairwise else average_levels),
        np.zeros(len(starts) - 1),
        noise_multiplier,
        steps,
        pairwise=pairwise,
        advance=advance,
    )


def least_noise(
    starts: Integers,
    records: Integers,
    probabilities: Floats,
    budgets: Floats,
    steps: int,
    *,
    pairwise: bool = False,
) -> CalibratedNoise:
    """The smallest noise multiplier with informations(...)[j] <= ``budgets[j]`` for every secret j.

    Accurate to about 1e-10 relative, and never too small. ``budgets`` [secrets] are nats; the other arguments are as in
    ``informations``. All secrets are checked in each round; there are usually one or two.

    Raises ValueError as ``informations`` does, for budgets that are not positive, if no record of any secret is ever
    drawn, and for a multiplier outside 1e-150..1e150.
    """
    check_memberships(starts, records, probabilities)
    at_least("steps", steps, 1)
    _check_budgets(budgets, len(starts) - 1)
    with np.errstate(over="ignore", under="ignore"):
        # Squares of tiny sums may underflow; roots have the same order.
        needs = means_of(starts, records, probabilities) / np.sqrt(budgets)
    if not needs.any():
        raise ValueError("probabilities of the secrets' records are all 0; records never drawn need no noise")
    solved_for = _highest(needs, needs > 0)
    sigma, slack = math.sqrt(steps / 2) * float(needs.max()), _SLACK
    while True:
        blocks = list(law_blocks(starts, records, probabilities, solved_for, long=None if pairwise else average_levels))
        sigma = _solve(blocks, budgets, steps, sigma, slack, pairwise=pairwise)
        all_blocks = law_blocks(starts, records, probabilities, long=None if pairwise else average_levels)
        nats = _informations(all_blocks, np.zeros(len(budgets)), sigma, steps, pairwise=pairwise)
        ratios = nats / budgets
        binding = int(ratios.argmax())
        worst = float(ratios[binding])
        if worst <= 1 and (nats <= budgets).all():
            return CalibratedNoise(noise_multiplier=sigma, binding=binding, worst_ratio=worst, informations=nats)
        joining = np.setdiff1d(_highest(ratios, ratios > 1), solved_for)
        if not len(joining):
            # Only if a coarse bound replaced the integral; otherwise two bounds differ by less than the slack.
            slack += math.log(worst) + _SLACK
        solved_for = np.union1d(solved_for, joining)


def _solve(
    blocks: Sequence[LawBlock], budgets: Floats, steps: int, start: float, slack: float, *, pairwise: bool
) -> float:
    """The least multiplier that keeps the secrets of ``blocks`` below budget by ``slack``; searched from ``start``."""

    def excess(sigma: float) -> float:
        with np.errstate(over="ignore"):
            worst = max(
                float((divergences(block, sigma, pairwise=pairwise) / budgets[block.places]).max()) for block in blocks
            )
        return math.log(steps) + math.log(worst) + slack

    return least_multiplier(excess, start)


def _informations(
    blocks: Iterable[LawBlock],
    nats: Floats,
    sigma: float,
    steps: int,
    *,
    pairwise: bool,
    advance: Advance = silent,
) -> Floats:
    """Fill ``nats`` with the information about each secret of ``blocks``, and return it."""
    undrawn = len(nats)
    for block in blocks:
        nats[block.places] = steps * divergences(block, sigma, pairwise=pairwise)
        advance(len(block.places))
        undrawn -= len(block.places)
    advance(undrawn)
    return nats


def _highest(scores: Floats, eligible: NDArray[np.bool_]) -> Integers:
    """The indices of the highest scores among those eligible, ascending."""
    indices = np.flatnonzero(eligible)
    return np.sort(indices[np.argsort(-scores[indices], kind="stable")[:_SCREENED]])


def _check_budgets(budgets: Floats, count: int) -> None:
    if len(budgets) != count:
        raise ValueError(f"budgets has {len(budgets)} entries for {count} secrets; each secret has one")
    wrong = ~((budgets > 0) & np.isfinite(budgets))
    if wrong.any():
        worst_index = int(wrong.argmax())
        raise ValueError(
            f"budget {worst_index} is {float(budgets[worst_index])!r}; it must be a finite number of nats above 0"
        )
