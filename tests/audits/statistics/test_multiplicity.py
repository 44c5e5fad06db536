from __future__ import annotations

import numpy as np
import pytest

from audits.statistics.multiplicity import holm


@pytest.mark.parametrize(
    ("given", "adjusted"),
    [
        ([], []),
        ([0.2], [0.2]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.9, 0.001, 0.9], [1.0, 0.003, 1.0]),
    ],
)
def test_known_numbers(given: list[float], adjusted: list[float]) -> None:
    assert holm(given) == pytest.approx(adjusted)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_value(bad: float) -> None:
    with pytest.raises(ValueError, match="p-value"):
        holm([0.5, bad])


def test_some_error_happens_at_most_alpha_of_the_time() -> None:
    p_values = np.random.default_rng(0).random((1000, 8))
    assert sum(min(holm(list(row))) <= 0.05 for row in p_values) <= 72  # 0.1 % of binomials with 5 % exceed it
    assert sum(min(row) <= 0.05 for row in p_values) > 72  # without the correction
