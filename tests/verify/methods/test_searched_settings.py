"""The settings that a search says it tried: numbers where the chosen one is a number, and the chosen one among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from verify.methods.dp_sgd import _unsearched_settings

CHOSEN: Any = SimpleNamespace(learning_rate=1e-3, optimizer="sgd", batch_size=30)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("learning-rate=1e-3,1e-2", ""),
        ("--learning-rate=1e-3,0.01 optimizer=sgd,adamw batch-size=30,60", ""),
        ("learning-rate=1e-3,1e-2x", "is a number, and not all of the 1e-3,1e-2x"),
        ("learning-rate=1e-3,nan", "is a number, and not all of"),
        ("learning-rate=1e-2,1e-1", "which is none of the"),
        ("optimizer=adamw", "which is none of the"),
        (" ", "names no setting that was searched"),
    ],
)
def test_what_was_searched_holds_what_was_chosen(settings: str, says: str) -> None:
    found = list(_unsearched_settings(settings, CHOSEN))
    assert len(found) == bool(says)
    assert all(says in fault for fault in found)
