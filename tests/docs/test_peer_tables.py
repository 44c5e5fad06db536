"""The summary of membership attacks beside other projects'."""

from __future__ import annotations

from typing import Any

from tests.bench.audit_wide import ratios, rows
from tests.docs.peer_tables import ahead, rare, summary


def _party(area: float, rate: float | None, **more: Any) -> dict[str, Any]:
    attacks = {"worse": {"AUC": area - 0.1, "TPR at 1 %": None}, "better": {"AUC": area, "TPR at 1 %": rate}}
    return {"attacks": attacks, **more}


def _rows(parties: dict[str, Any]) -> list[str]:
    (row,) = summary({"texts, plain": {"parties": parties}}).splitlines()[2:]
    return [cell.strip() for cell in row.strip("|").split("|")]


OURS = {"privctl": _party(0.6, 0.02, p_value=0.031), "privctl, with recall": _party(0.9, 0.5, p_value=0.001)}


def test_default_attacks_stand_beside_the_project_with_the_largest_area() -> None:
    apart = {"attack": "better", "other": "better", "AUC": -0.05, "lower": -0.0604, "upper": -0.04}
    rate = {"attack": "better", "other": "better", "difference": -0.02, "lower": -0.0304, "upper": 0.01}
    others = {
        "first": _party(0.63, 0.04, difference={**apart, "AUC": -0.03, "TPR at 1 %": rate}),
        "second": _party(0.65, None, difference=apart),
        "third": _party(0.5, 0.03, difference={**apart, "TPR at 1 %": {**rate, "difference": -0.01}}),
    }
    assert _rows({**OURS, **others}) == [
        "texts, plain", "0.600 (better)", "0.650 (second: better)", "-0.0500 (-0.060 to -0.040)", "0.020", "0.040",
        "-0.020 (-0.030 to +0.010)", "0.031",
    ]  # fmt: skip


def test_what_was_not_compared_has_no_difference() -> None:
    same = {"attack": "better", "other": "better", "AUC": 0.0}
    assert _rows({**OURS, "other": _party(0.6, 0.02, difference=same)})[3] == "+0.0000 (the same order)"
    assert _rows({**OURS, "other": _party(0.6, 0.02)})[2:4] == ["0.600 (other: better)", "-"]
    assert _rows(OURS)[2:] == ["-", "-", "0.020", "-", "-", "0.031"]


def test_rare_rates_stand_beside_the_largest_of_another_that_was_compared() -> None:
    def party(rate: float, **more: Any) -> dict[str, Any]:
        return {"attacks": {"a": {"AUC": 0.9, "TPR at 0.1 %": rate - 0.01}, "b": {"TPR at 0.1 %": rate}}, **more}

    apart = {"difference": -0.02, "lower": -0.0304, "upper": 0.01}
    parties = {
        "privctl": party(0.05),
        "first": party(0.06, difference={"AUC": 0.1, "TPR at 0.1 %": {**apart, "difference": -0.01}}),
        "second": party(0.07, difference={"AUC": 0.1, "TPR at 0.1 %": apart}),
        "third": party(0.09, difference={"AUC": 0.1}),
    }
    unresolved = {"privctl": party(0.05), "first": party(0.06, difference={"AUC": 0.1})}
    table = rare({"texts, plain": {"parties": parties}, "texts, few": {"parties": unresolved}})
    (row,) = table.splitlines()[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["texts, plain", "0.050 (b)", "0.070 (second: b)", "-0.020 (-0.030 to +0.010)"]


def test_targets_are_counted_on_which_an_interval_leaves_out_0() -> None:
    def party(lower: float, upper: float, **more: Any) -> dict[str, Any]:
        return _party(0.6, 0.02, difference={"AUC": (lower + upper) / 2, "lower": lower, "upper": upper, **more})

    rate = {"TPR at 1 %": {"difference": 0.1, "lower": 0.05, "upper": 0.15}}
    same = _party(0.6, 0.02, difference={"AUC": 0.0})
    found = [
        (False, {"b": party(0.01, 0.02, **rate), "A": party(-0.02, -0.01)}),
        (False, {"b": party(-0.01, 0.02), "A": same}),
        (False, {"b": party(0.01, 0.02), "A": _party(0.6, 0.02)}),
        (True, {"b": party(-0.02, -0.01), "A": party(0.01, 0.02)}),
    ]
    targets = {str(i): {"null": null, "parties": {**OURS, **others}} for i, (null, others) in enumerate(found)}
    assert ahead(targets) == (
        "On the targets that were trained on their members, by an interval that leaves out 0, "
        "privctl's best AUC is ahead of A's on 0 of 2 and behind on 1, of b's on 2 of 3 and behind on 0; "
        "its best TPR at 1 % is ahead of A's on 0 of 0 and behind on 0, of b's on 1 of 1 and behind on 0.\n"
    )


def test_times_are_compared_within_rounds_and_at_as_many_models() -> None:
    own = [
        {"float32 cpu": 4.0, "bfloat16 cpu": 2.0, "reference cpu": 1.0, "bfloat16 wall": 2.0, "reference wall": 2.0},
        {"float32 cpu": 8.0, "bfloat16 cpu": 2.0, "reference cpu": 2.0, "bfloat16 wall": 4.0, "reference wall": 4.0},
    ]
    others = [{"cpu": 10.0, "wall": 20.0}, {"cpu": 20.0, "wall": 20.0}]
    parties = {"privctl": own, "Privacy Meter": others, "PrivacyGuard": others}
    texts = {"records": 60, "texts": True, "parties": parties}
    assert ratios(texts, "Privacy Meter", "bfloat16") == [0.2, 0.1]  # one model
    assert ratios(texts, "PrivacyGuard", "bfloat16") == [0.3, 0.2]  # the reference model too
    assert ratios(texts, "PrivacyGuard", "float32") == [0.8, 0.8]
    assert ratios(texts, "PrivacyGuard", "bfloat16", "wall") == [0.2, 0.4]
    assert ratios({**texts, "texts": False}, "PrivacyGuard", "bfloat16") == [0.2, 0.1]
    first, _ = rows({"texts": texts})
    assert first == [
        "texts",
        "60",
        "Privacy Meter",
        "15",
        "0.15 (0.10 to 0.20)",
        "0.15 (0.10 to 0.20)",
        "0.40 (0.40 to 0.40)",
    ]
