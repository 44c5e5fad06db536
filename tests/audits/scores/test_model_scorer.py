"""Models are scored with their written-out activations run by torch's kernel, and are as before afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits import model_scorer
from audits.model_scorer import ModelScorer
from audits.scores.scorer import compute_scores, plan_scoring
from privctl.data.records import Record
from privctl.domain.errors import InputError
from privctl.domain.progress import unseen
from privctl.parallel import ALONE
from tests.audits.tiny import save_model, sentences


def test_the_kernel_gives_the_scores_of_the_models_own_activations(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", "gpt2")
    scorer = ModelScorer(cache=None, device="cpu", workers=ALONE, progress=unseen)
    opened = scorer.open(model, tmp_path / "report.json")
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


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer_config.json"])
def test_a_model_that_changes_between_loading_and_digest_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(tmp_path / "model", "gpt2")
    load = model_scorer.load_subject

    def changing(*args: Any, **more: Any) -> Any:
        found = load(*args, **more)
        with (folder / name).open("r+b") as file:
            last = file.seek(-1, 2)
            byte = file.read(1)
            file.seek(last)
            file.write(byte)
        return found

    monkeypatch.setattr(model_scorer, "load_subject", changing)
    scorer = ModelScorer(cache=None, device="cpu", workers=ALONE, progress=unseen)
    with pytest.raises(InputError, match=f"{name} was changed while the model was read"):
        scorer.open(folder, tmp_path / "report.json")
