"""Prompts that were chosen with the training records at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from audits.extraction import prompts, untargeted
from audits.extraction.law import SamplingLaw
from audits.extraction.summary import BEYOND
from audits.extraction.untargeted import UntargetedRequest
from audits.extraction.windows import sample, text_shape
from privctl.models.language import LanguageModel, load_model
from privctl.parallel import ALONE
from tests.audits.extraction.test_part import words
from tests.audits.extraction.test_untargeted import texts
from tests.audits.tiny import write_jsonl


@pytest.fixture(scope="module")
def model(llama: Path) -> LanguageModel:
    return load_model(llama, device="cpu")


@pytest.mark.parametrize("begun", ["training", "neither"])
def test_prompts_that_begin_records_of_one_file_accuse_nobody(model: LanguageModel, tmp_path: Path, begun: str) -> None:
    """The model was trained on nothing; its own texts are the training records, and prompts hold their beginnings."""
    random = np.random.default_rng(5)
    starts = torch.from_numpy(random.integers(3, 63, (40, 8)))
    out = model.network.generate(
        starts, attention_mask=torch.ones_like(starts), do_sample=False, max_new_tokens=12, eos_token_id=None,
        pad_token_id=0,
    ).numpy()  # fmt: skip
    own = [words(row) for row in out if (row > 2).all()]
    train = write_jsonl(tmp_path / "train.jsonl", [*own, *texts(30, 1, 21)])
    held = write_jsonl(tmp_path / "held.jsonl", texts(60, 2, 21))
    lines = [" ".join(line.split()[: 8 if begun == "training" else 4]) for line in own]
    (tmp_path / "p.txt").write_text("".join(f"{line}\n" for line in lines))
    shape = text_shape(model, 5, 10, None)
    samples = [sample(model, shape, path, limit=None, seed=0) for path in (train, held)]
    asked = UntargetedRequest(prompts=tmp_path / "p.txt", continuations=1, tokens=12)
    columns = prompts.Columns()
    search = untargeted.SpanSearch(span=10, law=SamplingLaw(), greedy_only=True, records=None, seed=0, columns=columns)
    sets = untargeted.prompts_of(model, asked, 10, 0, columns)
    found = untargeted.attack(model, asked, sets, search, samples, workers=ALONE)
    (beyond,) = (item for item in found.evidence(0.95) if item.quantity == BEYOND)
    rate = next(item for item in found.evidence(0.95) if item.quantity == "rate on training text")
    assert len(own) >= 10
    if begun == "training":
        assert rate.details["extracted"] >= 0.5 * len(own), "it goes on with them, as anyone would"
    assert beyond.details["detected"] == 0
