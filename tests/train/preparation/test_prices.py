"""What a plan says of bounds on users and on batches, before a training."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from privctl.accounting.ledger import epsilon_bound
from privctl.domain.events import GroupGaussian, Ledger, SampledGaussian, TruncatedGaussian
from privctl.train.preparation.ledgers import price_of_group, price_of_largest_batch
from privctl.train.preparation.user_bounds import bound_choice_notes
from privctl.train.settings.recipe import TrainingSettings

NOISE, RATE, STEPS, DELTA = 2.0, 0.2, 3, 1e-3


def recipe(**bound: int) -> TrainingSettings:
    return TrainingSettings(
        method="dp-sgd", steps=STEPS, batch_size=30 * RATE, sample_rate=RATE, learning_rate=0.1,
        noise_multiplier=NOISE, **bound,
    )  # fmt: skip


def plain(noise: float) -> float:
    event = SampledGaussian(noise_multiplier=noise, sample_rate=RATE, steps=STEPS)
    return epsilon_bound(Ledger(events=(event,)), DELTA)


def test_the_price_of_users_records_is_beside_one_record_s_noise() -> None:
    price_match = re.search(r"epsilon ([\d.]+) takes a noise multiplier of 2; .* takes ([\d.]+) at", price(group=3))
    assert price_match is not None
    event = GroupGaussian(noise_multiplier=NOISE, sample_rate=RATE, steps=STEPS, group_size=3)
    assert float(price_match[1]) == pytest.approx(epsilon_bound(Ledger(events=(event,)), DELTA), rel=5e-3)
    assert plain(float(price_match[2])) == pytest.approx(float(price_match[1]), rel=2e-2)


def test_the_price_of_a_largest_batch_says_how_often_one_is_cut() -> None:
    price_match = re.search(
        r"which ([\d.]+) % .* epsilon ([\d.]+) takes .* of 2; .* takes ([\d.]+)", price(largest_batch=6)
    )
    assert price_match is not None
    assert float(price_match[1]) == 39  # 1 - CDF of Bin(30, 0.2) at 6: 0.393 (any table)
    event = TruncatedGaussian(noise_multiplier=NOISE, sample_rate=RATE, examples=30, largest_batch=6, steps=STEPS)
    assert float(price_match[2]) == pytest.approx(epsilon_bound(Ledger(events=(event,)), DELTA), rel=5e-3)
    assert plain(float(price_match[3])) == pytest.approx(float(price_match[2]), rel=2e-2)


def price(**bound: int) -> str:
    price_functions = price_of_group, price_of_largest_batch
    assert [price(recipe(), DELTA) for price in price_functions] == ["", ""]
    (found,) = (text for price in price_functions if (text := price(recipe(**bound), DELTA)))
    return found


@pytest.mark.parametrize(("fixed", "public"), [(None, False), (False, False), (True, True)])
def test_what_is_counted_in_private_data_is_no_ground_for_a_bound(fixed: bool | None, public: bool) -> None:
    rule = None if fixed is None else SimpleNamespace(fixes_graph=fixed)
    request: Any = SimpleNamespace(method=SimpleNamespace(group=lambda _: 2, shared=lambda _: rule))
    (note,) = bound_choice_notes(request)
    assert ("no guarantee covers a bound" in note) is not public
    assert ("costs nothing more" in note) is public
