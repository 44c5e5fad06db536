"""Passes over the data in shuffled order: how often one record takes part.

A pass takes every record once, in batches of N q records, q the sampling rate. If the batches do not divide the data,
a loader may drop the leftovers, and a pass has floor(1 / q) steps; or make a smaller batch of them, and a pass has
ceil(1 / q) steps. The first step begins a pass.
"""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.checks import count, probability


def participations(sample_rate: float, steps: int) -> int:
    """The most often that any record takes part in ``steps`` steps: ceil(steps / floor(1 / q)); 0 at rate 0.

    Leftovers are assumed dropped, which makes passes shortest; one record may never be among them. Raises
    ValueError for a rate outside [0, 1].
    Example: N = 100 in batches of 30 (rate 0.3) and 30 steps give 10, not the 9 of rate * steps.
    """
    return _begun(steps, _pass_lengths(sample_rate)[0]) if sample_rate > 0 else 0


def certain_participations(sample_rate: float, steps: int) -> int:
    """How often some record is sure to take part, leftovers dropped or not: ceil(steps / ceil(1 / q)).

    It is a record in the first batch of each pass. Raises ValueError as ``participations`` does.
    """
    return _begun(steps, _pass_lengths(sample_rate)[1]) if sample_rate > 0 else 0


def shortest_pass_if_uneven(sample_rate: float) -> int | None:
    """The steps of a pass that drops its leftovers; None if nothing is left over. Raises ValueError outside [0, 1]."""
    shortest, longest = _pass_lengths(sample_rate) if sample_rate > 0 else (0, 0)
    return None if shortest == longest else shortest


def _begun(steps: int, pass_length: int) -> int:
    """Passes begun after ``steps`` steps."""
    count("steps", steps)
    return -(-steps // pass_length)


def _pass_lengths(sample_rate: float) -> tuple[int, int]:
    """The fewest and the most steps of a pass: 1 / ``sample_rate`` rounded down and up.

    A float differs from the fraction that was meant: 0.1 is a little more than 1 / 10. The float nearest to 1 / n
    stands for 1 / n; no other B / N is so near to it unless N is above 2^52.
    """
    probability("sample_rate", sample_rate)
    exact = 1 / Fraction(sample_rate)
    fewest = int(exact)
    for whole in (fewest, fewest + 1):
        if whole < 2**52 and 1.0 / whole == sample_rate:
            return whole, whole
    return fewest, fewest + 1
