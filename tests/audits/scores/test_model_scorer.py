"""Models are scored with their written-out activations run by torch's kernel, and are as before afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from audits.model_scorer import ModelScorer
from audits.scores.scorer import compute_scores, plan_scoring
from privctl.data.records import Record
from privctl.domain.progress import unseen
from privctl.parallel import ALONE
from tests.audits.tiny import save_model, sentences


def test_the_kernel_gives_the_scores_of_the_models_own_activations(tmp_path: Path) -> None:
    place = save_model(tmp_path / "model", "gpt2")
    scorer = ModelScorer(cache=None, device="cpu", workers=ALONE, progress=unseen)
    opened = scorer.open(place, tmp_path / "report.json")
    texts = sentences(6, seed=0)
    rows = opened.subject.rows([Record(i, text) for i, text in enumerate(texts, start=1)]).rows
    activation = opened.subject.model.network.transformer.h[0].mlp.act
    fused: list[bool] = []
    activation.register_forward_hook(lambda module, given, made: fused.append("forward" in vars(module)))
    found = scorer.score(opened, rows)
    assert fused
    assert all(fused)
    assert "forward" not in vars(activation)
    own = compute_scores(plan_scoring(opened.subject.scorer, rows))
    assert not fused[-1]
    np.testing.assert_allclose(found.values, own.values, rtol=1e-4, atol=1e-5)
