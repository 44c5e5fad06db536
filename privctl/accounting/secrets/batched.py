"""Protection of many secrets at once: what one run gives away of each, and the least noise with which all are kept.

The forms are those of ``secrets``. KL falls with the noise multiplier (more noise is a channel applied to both laws:
data processing), so the least noise for all is the largest of the least ones, and few secrets can have it: a secret
with sum of probabilities s, T steps and D nats needs at least s sqrt(T / (2 D)) in the reference form. Those that come
first by s^2 / D are solved for; then every secret is checked, and any that breaks its budget joins them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.secrets.fano import least_multiplier
from privctl.accounting.secrets.loss_laws import (
    Integers,
    LawBlock,
    check_memberships,
    law_blocks,
    leveled,
    means_of,
)
from privctl.accounting.secrets.mixtures import divergences
from privctl.domain.checks import at_least, positive
from privctl.domain.progress import Advance, silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Secrets that are solved for at first, and that may join in a round.
_SCREENED = 64
#: How far below its budget a solved secret stays, relatively: more than two bounds on one divergence differ.
_SLACK = 3e-11


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibrated:
    """The least noise for all secrets: ``binding`` is the secret that needs it, at ``worst_ratio`` of its budget.

    ``informations`` [secrets] float64: at most what all steps give away of each, in nats, under that noise.
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
    """Nats that all steps give away of each secret: steps * KL, never below the true value; shape [secrets].

    Secret j lies in the distinct ``records[starts[j]:starts[j + 1]]`` (int64), record i is in a batch with
    ``probabilities[i]`` (float64). Above the true value by less than 1e-11 of it, except where one secret by itself
    gets less (``mixtures``: a law of thousands of records a batch under little noise). 0 for a secret whose records are
    never drawn. ``advance`` is told of secrets done.

    Raises ValueError for probabilities outside [0, 1], and for anything else that is out of range.
    """
    check_memberships(starts, records, probabilities)
    positive("noise_multiplier", noise_multiplier)
    at_least("steps", steps, 1)
    return _informations(
        law_blocks(starts, records, probabilities, long=None if pairwise else leveled),
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
    advance: Advance = silent,
) -> Calibrated:
    """The smallest noise multiplier with informations(...)[j] <= ``budgets[j]`` for every secret j.

    To about 1e-10 relative, and never below. ``budgets`` [secrets] are nats; the rest is as in ``informations``. All
    secrets are checked in each round, mostly in one or two; ``advance`` is told of those.

    Raises ValueError as ``informations`` does, for budgets that are not positive numbers, where no record of any secret
    is ever drawn, and for a multiplier outside 1e-150..1e150.
    """
    check_memberships(starts, records, probabilities)
    at_least("steps", steps, 1)
    _check_budgets(budgets, len(starts) - 1)
    with np.errstate(over="ignore", under="ignore"):
        # Squares of tiny sums may vanish; roots rank alike.
        needs = means_of(starts, records, probabilities) / np.sqrt(budgets)
    if not needs.any():
        raise ValueError("probabilities of the secrets' records are all 0; records never drawn need no noise")
    chosen = _first(needs, needs > 0)
    sigma, slack = math.sqrt(steps / 2) * float(needs.max()), _SLACK
    while True:
        blocks = list(law_blocks(starts, records, probabilities, chosen, long=None if pairwise else leveled))
        sigma = _solve(blocks, budgets, steps, sigma, slack, pairwise=pairwise)
        every = law_blocks(starts, records, probabilities, long=None if pairwise else leveled)
        found = _informations(every, np.zeros(len(budgets)), sigma, steps, pairwise=pairwise, advance=advance)
        ratios = found / budgets
        binding = int(ratios.argmax())
        worst = float(ratios[binding])
        if worst <= 1 and (found <= budgets).all():
            return Calibrated(noise_multiplier=sigma, binding=binding, worst_ratio=worst, informations=found)
        joining = np.setdiff1d(_first(ratios, ratios > 1), chosen)
        if not len(joining):
            # Only where a coarse bound took the place of the integral; elsewhere two bounds differ by less.
            slack += math.log(worst) + _SLACK
        chosen = np.union1d(chosen, joining)


def _solve(
    blocks: Sequence[LawBlock], budgets: Floats, steps: int, start: float, slack: float, *, pairwise: bool
) -> float:
    """The least multiplier that keeps the secrets of ``blocks`` ``slack`` below budget; a search from ``start``."""

    def excess(sigma: float) -> float:
        with np.errstate(over="ignore"):
            worst = max(
                float((divergences(block, sigma, pairwise=pairwise) / budgets[block.places]).max()) for block in blocks
            )
        return math.log(steps) + math.log(worst) + slack

    return least_multiplier(excess, start)


def _informations(
    blocks: Iterable[LawBlock],
    found: Floats,
    sigma: float,
    steps: int,
    *,
    pairwise: bool,
    advance: Advance,
) -> Floats:
    """``found`` with the information about each secret of ``blocks`` filled in."""
    left = len(found)
    for block in blocks:
        found[block.places] = steps * divergences(block, sigma, pairwise=pairwise)
        advance(len(block.places))
        left -= len(block.places)
    advance(left)
    return found


def _first(scores: Floats, eligible: NDArray[np.bool_]) -> Integers:
    """The places of the highest scores among those eligible, ascending."""
    places = np.flatnonzero(eligible)
    return np.sort(places[np.argsort(-scores[places], kind="stable")[:_SCREENED]])


def _check_budgets(budgets: Floats, count: int) -> None:
    if len(budgets) != count:
        raise ValueError(f"budgets has {len(budgets)} entries for {count} secrets; each secret has one")
    wrong = ~((budgets > 0) & np.isfinite(budgets))
    if wrong.any():
        place = int(wrong.argmax())
        raise ValueError(f"budget {place} is {float(budgets[place])!r}; it must be a finite number of nats above 0")
