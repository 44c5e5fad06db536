"""Ways to score texts and to find extracted ones: privctl's, and what other tools do.

Every way gets the same rows of token ids and the same network, so that tokenisers play no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config

from audits.extraction.greedy import decide
from audits.extraction.screen import screen
from audits.scores.forward import score_rows
from audits.scores.table import FIELDS
from privctl.models.language import LanguageModel

Rows = Sequence[np.ndarray[Any, np.dtype[np.int64]]]
#: Share of a text's tokens that Min-K% looks at.
K = 0.2
#: Texts that ``generate`` goes on with at once.
TOGETHER = 64


def random_model(*, layers: int, width: int, vocabulary: int, context: int, seed: int = 0) -> LanguageModel:
    """An untrained GPT-2 whose logits differ as much as a trained one's, so that few of them nearly tie."""
    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=max(1, width // 64), n_positions=context, vocab_size=vocabulary,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    network = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    network.transformer.ln_f.weight.mul_(16)
    path = Path("untrained")
    return LanguageModel(path=path, folder=path, network=network, tokenizer=None, device=torch.device("cpu"))


def random_rows(model: LanguageModel, count: int, shortest: int, longest: int, seed: int = 0) -> Rows:
    """Rows of random ids, of random lengths."""
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, longest + 1, count)
    return [random.integers(0, model.vocabulary, int(length)) for length in lengths]


def windows(model: LanguageModel, count: int, prefix: int, suffix: int, share: float) -> Rows:
    """Random prefixes, of which ``share`` are followed by what greedy decoding says, the others by random ids."""
    random = np.random.default_rng(1)
    rows = random.integers(0, model.vocabulary, (count, prefix + suffix))
    matching = np.arange(count) < round(share * count)
    if matching.any():
        rows[matching, prefix:] = continued(model, rows[matching, :prefix], suffix)
    return list(random.permutation(rows))


@torch.inference_mode()
def continued(model: LanguageModel, prefixes: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """``count`` greedy tokens after each prefix, by ``generate`` with its cache, in batches."""
    found = []
    for ids in torch.split(torch.from_numpy(prefixes), TOGETHER):
        out = model.network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        found.append(out[:, ids.shape[1] :].numpy())
    return np.concatenate(found)


def lowest(values: Tensor) -> float:
    """Mean of the share ``K`` of ``values`` [n] that are lowest."""
    return float(values.sort().values[: max(1, int(K * len(values)))].mean())


@torch.inference_mode()
def text_by_text(model: LanguageModel, rows: Rows, scores: Sequence[str]) -> np.ndarray[Any, Any]:
    """``scores`` [scores, rows] from one forward pass a text."""
    found = []
    for row in rows:
        ids = torch.from_numpy(row)[None]
        logits = model.network(input_ids=ids, use_cache=False).logits[0, :-1]
        logp = logits.log_softmax(dim=-1)
        own = logp.gather(1, ids[0, 1:, None])[:, 0]
        one = []
        for score in scores:
            if score == "loss":
                one.append(float(own.mean()))
            elif score == "min-k":
                one.append(lowest(own))
            else:
                p = logp.exp()
                mean = (p * logp).sum(dim=1)
                spread = (p * (logp - mean[:, None]).square()).sum(dim=1).sqrt()
                one.append(lowest((own - mean) / spread))
        found.append(one)
    return np.array(found).T


SCORES = ("loss", "min-k", "min-k++")


def one_by_one(model: LanguageModel, rows: Rows) -> np.ndarray[Any, Any]:
    """Each score runs the model again, one text at a time."""
    return np.concatenate([text_by_text(model, rows, [score]) for score in SCORES])


def shared_one_by_one(model: LanguageModel, rows: Rows) -> np.ndarray[Any, Any]:
    """One text at a time, but every score from the same pass."""
    return text_by_text(model, rows, SCORES)


def ours(model: LanguageModel, rows: Rows) -> np.ndarray[Any, Any]:
    """privctl's shared pass, and the same scores from its table."""
    values, offsets = score_rows(model, rows)
    named = dict(zip(FIELDS, torch.from_numpy(values), strict=True))
    z = (named["lp"] - named["mu"]) / named["var"].sqrt()
    spans = [slice(*ends) for ends in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    found = [[float(named["lp"][span].mean()), lowest(named["lp"][span]), lowest(z[span])] for span in spans]
    return np.array(found).T


SCORING: dict[str, Callable[[LanguageModel, Rows], np.ndarray[Any, Any]]] = {
    "one text at a time, per attack": one_by_one,
    "one text at a time, shared": shared_one_by_one,
    "privctl": ours,
}


def by_generating(model: LanguageModel, rows: Rows, suffix: int) -> np.ndarray[Any, Any]:
    """Generate, then compare."""
    whole = np.stack(rows)
    return np.asarray((continued(model, whole[:, :-suffix], suffix) == whole[:, -suffix:]).all(axis=1))


def by_screening(model: LanguageModel, rows: Rows, suffix: int) -> np.ndarray[Any, Any]:
    """privctl, where only greedy extraction is asked for."""
    return decide(model, rows, *screen(model, rows, suffix)).extracted


def by_sharing(model: LanguageModel, rows: Rows, suffix: int) -> np.ndarray[Any, Any]:
    """privctl, from the pass that gives all the scores of whole texts."""
    values, offsets = score_rows(model, rows)
    places = offsets[1:, None] - suffix + np.arange(suffix)
    lp, margin, lse = (values[FIELDS.index(name)][places] for name in ("lp", "margin", "lse"))
    return decide(model, rows, margin, lp + lse).extracted


EXTRACTION: dict[str, Callable[[LanguageModel, Rows, int], np.ndarray[Any, Any]]] = {
    "generate and compare": by_generating,
    "privctl, greedy only": by_screening,
    "privctl, shared pass": by_sharing,
}
