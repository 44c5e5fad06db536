"""Caps that are compared: which, and what becomes of those that cannot be met."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from privctl.domain.errors import CommandError
from privctl.secrets.plan import sweep

PROBLEM: Any = SimpleNamespace(largest_cap=8.0)


def progress(*_: object) -> Any:
    return nullcontext()


def test_caps_fall_from_the_largest_useful_one_to_a_thousandth_of_it() -> None:
    none, *caps = sweep.caps_to_sweep(PROBLEM)
    assert none is None
    assert len(caps) == 10
    assert caps[-1] == pytest.approx(8 / 1000)
    steps = [later / earlier for earlier, later in zip([8.0, *caps], caps, strict=False)]
    assert steps == pytest.approx([1000 ** (-1 / 10)] * 10)


def test_a_cap_that_cannot_be_met_is_refused_and_the_others_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(_: object, cap: float | None, __: object) -> float:
        if cap is not None and cap < 2:
            raise CommandError(f"cap {cap:g} cannot be met")
        return 0.0 if cap is None else cap

    monkeypatch.setattr(sweep, "_try_cap", tried)
    found = sweep.sweep_caps(PROBLEM, [None, 4.0, 1.0, 2.0], progress, strict=False)
    assert (found.tried, found.refused) == ((0.0, 4.0, 2.0), ((1.0, "cap 1 cannot be met"),))
    for caps, strict in (([4.0, 1.0], True), ([1.0], False)):
        with pytest.raises(CommandError, match="cap 1 cannot be met"):
            sweep.sweep_caps(PROBLEM, caps, progress, strict=strict)
