"""Values that the functions do not take are a CommandError with one sentence, and values of numpy are numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privctl
from privctl.api.arguments import claim_text
from privctl.api.gating import _text
from privctl.domain.errors import CommandError

SIDES: dict[str, Any] = {"members": "a", "nonmembers": "b"}
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: privctl.audit("m", **SIDES, task="speech"), "--task is 'speech'; it must be one of causal-lm"),
    (lambda: privctl.audit("m", **SIDES, attacks="lose"), "--attack is 'lose'; it must be one of loss"),
    (lambda: privctl.audit("m", **SIDES, reference=3), "reference is a value of type int; give a path"),  # type: ignore[arg-type]
    (lambda: privctl.audit("m", **SIDES, temperature=0.5), "--temperature needs --train"),
    (lambda: privctl.audit("m", canaries="c", claim=1.0), "claim is 1.0; give a pair (epsilon, delta)"),  # type: ignore[arg-type]
    (lambda: privctl.audit("m", canaries="c", claim=(1, 1e-5, 2)), "give a pair (epsilon, delta)"),  # type: ignore[arg-type]
    (lambda: privctl.audit(from_scores="s.csv", temperature=0.5), "no model; remove --temperature"),
    (lambda: privctl.audit(from_scores="s.csv", exact=False), "no model; remove --exact"),
    (lambda: privctl.audit(from_scores="s.csv", text_column="t"), "no model; remove --text-column"),
    (lambda: privctl.audit(from_scores="s.csv", least_auc=0.7), "--least-auc is for scores of records"),
    (lambda: privctl.audit_scores([]), "there are no scores to judge"),
    (lambda: privctl.audit_scores("s.csv", score_column=()), "there are no scores to judge"),
    (lambda: privctl.audit_scores("s.csv", models=True, claim=[1]), "claim is [1]; give a pair"),  # type: ignore[arg-type]
    (lambda: privctl.audit_scores("s.csv", models=True, threshold="1"), "--threshold is '1'; it must be a number"),  # type: ignore[arg-type]
    (lambda: privctl.audit_scores("s.csv", models=True, threshold=np.nan), "--threshold is nan; it must be a finite"),
    (lambda: privctl.audit_scores("s.csv", models=True, least_auc=0.7), "--least-auc is for scores of records"),
]


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_other_values_are_refused(
    call: Callable[[], Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError) as caught:
        call()
    assert says in str(caught.value)


@pytest.mark.parametrize("pair", [(0.5, 1e-5), [0.5, 1e-5], np.array([0.5, 1e-5]), "0.5,1e-05"])
def test_a_claim_is_any_pair(pair: Any) -> None:
    assert claim_text(pair) == "0.5,1e-05"


def test_a_setting_of_the_gate_may_be_of_numpy_or_none(tmp_path: Path) -> None:
    assert _text(np.float64(0.1)) == "0.1"
    report = tmp_path / "r.report.json"
    report.write_text("{}")
    with pytest.raises(CommandError, match="no policy was found"):
        privctl.gate(report, max_epsilon=None)
