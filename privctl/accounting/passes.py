"""Passes over the data in shuffled order: how often one record takes part.

A pass uses every record once, in batches of N q records, where q is the sampling rate. If the batch size does not
divide the data, a loader may drop the remainder, and a pass has floor(1 / q) steps; or use it as a smaller batch, and a
pass has ceil(1 / q) steps. The first step begins a pass.
"""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.checks import count, probability


def participations(sample_rate: float, steps: int) -> int:
    """The maximum number of ``steps`` in which any record takes part: ceil(steps / floor(1 / q)); 0 at rate 0.

    Assumes that remainders are dropped, which makes passes shortest; a record may never be among them. Raises
    ValueError for a rate outside [0, 1].
    Example: N = 100 in batches of 30 (rate 0.3) and 30 steps give 10, not the 9 of rate * steps.
    """
    return _passes_begun(steps, _pass_lengths(sample_rate)[0]) if sample_rate > 0 else 0


def certain_participations(sample_rate: float, steps: int) -> int:
    """How often some record may take part even if remainders are not dropped: ceil(steps / ceil(1 / q)).

    Attained by a record in the first batch of each pass. Raises ValueError as ``participations`` does.
    """
    return _passes_begun(steps, _pass_lengths(sample_rate)[1]) if sample_rate > 0 else 0


def shortest_pass_if_uneven(sample_rate: float) -> int | None:
    """The steps of a pass that drops the remainder; None if there is none. Raises ValueError outside [0, 1]."""
    shortest, longest = _pass_lengths(sample_rate) if sample_rate > 0 else (0, 0)
    return None if shortest == longest else shortest


def _passes_begun(steps: int, pass_length: int) -> int:
    """The number of passes begun within ``steps`` steps."""
    count("steps", steps)
    return -(-steps // pass_length)


def _pass_lengths(sample_rate: float) -> tuple[int, int]:
    """The minimum and maximum number of steps in a pass: 1 / ``sample_rate`` rounded down and up.

    A float differs from the fraction that is meant: 0.1 is a little more than 1 / 10. The float nearest to 1 / n is
    taken to mean 1 / n; no other B / N rounds to it unless N is above 2^52.
    """
    probability("sample_rate", sample_rate)
    exact = 1 / Fraction(sample_rate)
    fewest = int(exact)
    for whole in (fewest, fewest + 1):
        if whole < 2**52 and 1.0 / whole == sample_rate:
            return whole, whole
    return fewest, fewest + 1
