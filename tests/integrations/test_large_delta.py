"""``make_private`` warns of a delta that is not well below 1 / examples, of which users are counted, not records."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privctl

RECORDS = 60
USERS = [f"user{i % 20}" for i in range(RECORDS)]


def make(**options: Any) -> None:
    model = nn.Linear(5, 3)
    data = TensorDataset(torch.randn(RECORDS, 5), torch.zeros(RECORDS, dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    privctl.make_private(model, optimizer, DataLoader(data, batch_size=6), noise_multiplier=1.0, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delta": 0.05}, "delta 0.05 is at least 1 / 60 examples"),
        ({"delta": 0.01}, "delta 0.01 is not far below 1 / 60 examples"),
        ({"delta": 0.05, "users": USERS}, "delta 0.05 is at least 1 / 20 examples"),
        ({"delta": 0.01, "users": USERS}, "delta 0.01 is not far below 1 / 20 examples"),
    ],
)
def test_a_large_delta_is_warned_of(options: dict[str, Any], says: str) -> None:
    with pytest.warns(UserWarning, match=says) as caught:
        make(**options)
    assert [each.filename for each in caught] == [__file__], "the warning names the caller's line"


@pytest.mark.parametrize("options", [{}, {"delta": 1e-3}, {"delta": 1e-3, "users": USERS}])
def test_a_small_delta_is_not(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(**options)
