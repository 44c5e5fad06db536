"""Cases of which few are quick: those that differ in what they pass through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

_SLOW = pytest.mark.slow
_PARAMETER_SET = type(pytest.param())


def few(cases: Iterable[Any], *quick: int, whole: bool = False) -> list[Any]:
    """``cases``, of which all but those at the places ``quick`` are slow.

    A tuple holds one value for each argument, unless ``whole`` says that it is the value of one.
    """
    every = list(cases)
    if not set(quick) <= set(range(len(every))):
        raise IndexError(f"of {len(every)} cases those at {quick} cannot be quick")
    return [case if index in quick else _slow(case, whole) for index, case in enumerate(every)]


def _slow(case: Any, whole: bool) -> Any:
    if isinstance(case, _PARAMETER_SET):
        return pytest.param(*case.values, marks=(*case.marks, _SLOW), id=case.id)
    return pytest.param(*((case,) if whole or not isinstance(case, tuple) else case), marks=_SLOW)
