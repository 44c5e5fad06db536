"""The whole way for models that are not causal: files to findings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audits.membership import lira, loss, rmia
from audits.membership.attack import Candidates, Settings, why_no_next_tokens
from audits.membership.records import candidates_of, prepare
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.subject import load_subject, read
from audits.statistics.metrics import auc
from privctl.cli import run
from tests.audits.other import TASKS, save, write_data
from tests.few import few

KINDS = ["bert", "masked", "vit", "resnet"]


def candidates(model: Path, members: Path, nonmembers: Path) -> Candidates:
    subject = load_subject(model, device="cpu")
    found = prepare(subject, read(subject, members), read(subject, nonmembers))
    return candidates_of(found, compute_scores(plan_scoring(subject.scorer, found.rows)))


def area(found: Candidates) -> float:
    scores = loss.ATTACK.score(found, Settings())
    return auc(*found.table.split(scores)).value


# Texts and images; those of the other two are scored the same way.
@pytest.mark.parametrize(
    "kind", [kind if kind == "vit" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_what_was_learned_by_heart_is_found_and_nothing_else(kind: str, tmp_path: Path) -> None:
    members, others, null = (write_data(tmp_path / f"d{seed}", kind, 40, seed) for seed in (1, 2, 3))
    model = save(tmp_path / "m", kind, learned=40, wide=False, steps=150 if kind == "masked" else 80)
    assert area(candidates(model, members, others)) > 0.72
    assert area(candidates(model, null, others)) == pytest.approx(0.5, abs=0.17)


@pytest.mark.parametrize("kind", few(TASKS, 0, 3))
def test_a_model_of_zeros_tells_nothing(kind: str, tmp_path: Path) -> None:
    members, others = (write_data(tmp_path / f"d{seed}", kind, 20, seed) for seed in (1, 2))
    found = candidates(save(tmp_path / "m", kind, zero=True), members, others)
    assert area(found) == 0.5
    assert np.isfinite(found.mean_lp).all()


def test_attacks_on_next_tokens_say_what_is_missing(tmp_path: Path) -> None:
    members, others = (write_data(tmp_path / f"d{seed}", "bert", 8, seed) for seed in (1, 2))
    found = candidates(save(tmp_path / "m", "bert"), members, others)
    assert why_no_next_tokens(found) == (
        "it reads the probabilities of each next token, which a model for text-classification does not give"
    )
    assert not loss.ATTACK.missing(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", pytest.param("vit", marks=pytest.mark.slow)])
def test_from_shadow_models_to_a_report(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Of files this small one pair in five looks different by itself, as the guard's level says; these do not.
    members, others = (write_data(tmp_path / f"d{seed}", kind, 30, seed) for seed in (1, 5))
    model = save(tmp_path / "m", kind, learned=30, wide=False)
    shadow = [
        "shadow", str(tmp_path / "m-start"), "--data", str(members), "--data", str(others), "--task", TASKS[kind],
        "--count", "6", "--steps", "30", "--batch-size", "15", "--learning-rate", "5e-3", "--device", "cpu", "-q",
        "-o", str(tmp_path / "shadows"),
    ]  # fmt: skip
    assert run(shadow) == 0
    audit = ["audit", str(model), "--members", str(members), "--nonmembers", str(others), "--device", "cpu", "-q"]
    for name in ("loss", "lira", "lira-online", "rmia", "rmia-online"):
        audit += ["--attack", name]
    assert run([*audit, "--shadow", str(tmp_path / "shadows")]) == 0
    out = capsys.readouterr().out
    assert 'REJECTED: "members cannot be told from non-members"' in out
    assert "rmia-online" in out
    assert {lira.OFFLINE.name, rmia.OFFLINE.name} <= set(out.split())
