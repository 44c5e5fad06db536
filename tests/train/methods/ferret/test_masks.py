"""Masks are fair coins of the stated bias from the seed alone; coins that look at the data are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest

from privctl.train.methods.ferret.masks import Masks

ALPHA = 1e-4


def masks(seed: bytes = b"public", chance: float = 0.07213475, groups: int = 8, steps: int = 4000) -> Masks:
    return Masks(seed=seed, groups=groups, fire_probability=chance, steps=steps)


def binomial(fired: Callable[[int], tuple[int, ...]], groups: int, steps: int, chance: float) -> float:
    """The least p-value of all counts together and of each group's, corrected for their number."""
    counts = np.zeros(groups, np.int64)
    for step in range(steps):
        counts[list(fired(step))] += 1
    together = binomtest(int(counts.sum()), groups * steps, chance).pvalue
    alone = min(binomtest(int(count), steps, chance).pvalue for count in counts)
    return min(1.0, 2 * together, 2 * groups * alone)


def test_counts_are_binomial() -> None:
    drawn_masks = masks()
    assert binomial(drawn_masks.fired, drawn_masks.groups, drawn_masks.steps, drawn_masks.fire_probability) > ALPHA


def test_coins_that_look_at_the_data_are_found() -> None:
    """A group that keeps silent where its derivative is small fires too rarely; one that fires where it is large..."""
    drawn_masks, derivatives = masks(), np.random.default_rng(0).normal(size=(4000, 8))

    def planted(step: int) -> tuple[int, ...]:
        return tuple(g for g in drawn_masks.fired(step) if abs(derivatives[step, g]) > 0.3)

    def eager(step: int) -> tuple[int, ...]:
        bold = [0] if abs(derivatives[step, 0]) > 2 else []
        return tuple(sorted({*drawn_masks.fired(step), *bold}))

    assert binomial(planted, drawn_masks.groups, drawn_masks.steps, drawn_masks.fire_probability) < ALPHA
    assert binomial(eager, drawn_masks.groups, drawn_masks.steps, drawn_masks.fire_probability) < ALPHA


def test_the_schedule_is_known_beforehand_and_the_seed_decides_it() -> None:
    one, two = masks(steps=300), masks(b"other", steps=300)
    schedule = [one.fired(step) for step in range(300)]
    assert schedule == [masks(steps=300).fired(step) for step in reversed(range(300))][::-1]
    assert schedule != [two.fired(step) for step in range(300)]
    assert one.counts == tuple(sum(g in fired for fired in schedule) for g in range(8))
    assert one.total == sum(map(len, schedule))
    assert one.active_steps == sum(bool(fired) for fired in schedule)
    assert one.sizes == {size: sum(len(f) == size for f in schedule) for size in {len(f) for f in schedule} - {0}}


@pytest.mark.parametrize(("chance", "each"), [(1.0, 8), (0.0, 0)])
def test_the_ends(chance: float, each: int) -> None:
    drawn_masks = masks(chance=chance, steps=5)
    assert [len(drawn_masks.fired(step)) for step in range(5)] == [each] * 5
    assert drawn_masks.total == 5 * each
