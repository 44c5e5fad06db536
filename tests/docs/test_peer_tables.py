"""The summary of membership attacks beside other projects'."""

from __future__ import annotations

from typing import Any

from tests.docs.peer_tables import summary


def _party(area: float, rate: float | None, **more: Any) -> dict[str, Any]:
    attacks = {"worse": {"AUC": area - 0.1, "TPR at 1 %": None}, "better": {"AUC": area, "TPR at 1 %": rate}}
    return {"attacks": attacks, **more}


def _rows(parties: dict[str, Any]) -> list[str]:
    (row,) = summary({"texts, plain": {"parties": parties}}).splitlines()[2:]
    return [cell.strip() for cell in row.strip("|").split("|")]


OURS = {"privctl": _party(0.6, 0.02, p_value=0.031), "privctl, with recall": _party(0.9, 0.5, p_value=0.001)}


def test_default_attacks_stand_beside_the_project_with_the_largest_area() -> None:
    apart = {"attack": "better", "other": "better", "AUC": -0.05, "lower": -0.0604, "upper": -0.04}
    others = {
        "first": _party(0.63, 0.04, difference={**apart, "AUC": -0.03}),
        "second": _party(0.65, None, difference=apart),
    }
    assert _rows({**OURS, **others}) == [
        "texts, plain", "0.600 (better)", "0.650 (second: better)", "-0.0500 (-0.060 to -0.040)", "0.020", "0.040",
        "0.031",
    ]  # fmt: skip


def test_what_was_not_compared_has_no_difference() -> None:
    same = {"attack": "better", "other": "better", "AUC": 0.0}
    assert _rows({**OURS, "other": _party(0.6, 0.02, difference=same)})[3] == "+0.0000 (the same order)"
    assert _rows({**OURS, "other": _party(0.6, 0.02)})[2:4] == ["0.600 (other: better)", "-"]
    assert _rows(OURS)[2:] == ["-", "-", "0.020", "-", "0.031"]
