"""Two ways to train that no ledger covers together are never stated together, nor users where a method has none."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from privctl.reports.parameters import TrainingParameters
from verify.methods import METHODS, expected_of
from verify.methods.dp_sgd import _KINDS, combined_variants
from verify.settings.users import unsupported_user_settings


def stated(*names: str) -> Any:
    return SimpleNamespace(**{name: 1 if name in names else None for name in (*_KINDS, "target_unclipped_quantile")})


@pytest.mark.parametrize("pair", [*combinations([*_KINDS, "target_unclipped_quantile"], 2)])
def test_two_ways_are_no_training(pair: tuple[str, str]) -> None:
    fine = pair == ("largest_batch", "target_unclipped_quantile")
    assert [("no training does both" in each) for each in combined_variants(stated(*pair))] == ([] if fine else [True])


def test_one_way_is_a_training() -> None:
    assert not any(list(combined_variants(stated(name))) for name in (*_KINDS, "target_unclipped_quantile", ""))


def test_only_one_method_clips_records_of_users_apart() -> None:
    assert [name for name in METHODS if (method := expected_of(name)) is not None and method.users] == ["dp-sgd"]
    found = list(unsupported_user_settings(TrainingParameters(method="dp-zo", max_records_per_user=3, unit="who")))
    assert found == ["max_records_per_user is 3, and the method 'dp-zo' has no such setting"]
    assert not list(unsupported_user_settings(TrainingParameters(method="dp-zo", unit="who", similar_names=0)))
