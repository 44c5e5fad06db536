"""Leaks that show in gradients of small networks, and hardly in their losses."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from audits.membership.attack import Candidates
from audits.membership.gradients import Differentiator
from audits.membership.records import candidates_of, prepare
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.subject import AuditedModel, load_subject, subject_of
from audits.scores.table import FIELDS
from privctl.data.records import Record
from tests.audits.tiny import WORDS, save_model, sentences

#: The length of a step for each record's gradient of length 1, and the standard deviation of the noise on their sum.
_STEP, _NOISE = 0.3, 0.5
#: Words with a twin; their names are equally long.
_TWINS = 25


@cache
def start() -> AuditedModel:
    """A network that has learned nothing, in memory."""
    with tempfile.TemporaryDirectory() as folder:
        return load_subject(save_model(Path(folder) / "m"), device="cpu")


def changed(subject: AuditedModel) -> AuditedModel:
    """The same with a network of its own."""
    return subject_of(subject.task, replace(subject.model, network=copy.deepcopy(subject.model.network)))


def answered(
    subject: AuditedModel,
    sides: Sequence[Sequence[Record]],
    names: Sequence[str],
    reference: AuditedModel | None = None,
) -> Candidates:
    """What ``subject`` and attacks by gradients say of members and others."""
    work = prepare(subject, *sides)
    scores = compute_scores(plan_scoring(subject.scorer, work.rows))
    gradients = Differentiator(subject=subject, reference=reference).scores(names, work)
    known = None
    if reference is not None:
        lp = compute_scores(plan_scoring(reference.scorer, work.rows)).take(work.rows, work.counts)[FIELDS.index("lp")]
        known = np.add.reduceat(lp.astype(np.float64), np.cumsum(work.counts) - work.counts) / work.counts
    return candidates_of(work, scores, known, None, gradients)


def flatter(seed: int, side: int, names: Sequence[str]) -> Candidates:
    """Each word has a twin that is as likely, of a longer embedding, by which a loss changes less; members have it."""
    subject = changed(start())
    network = subject.model.network
    torch.manual_seed(seed)
    with torch.no_grad():
        for weights in (network.get_input_embeddings().weight, network.get_output_embeddings().weight):
            weights[-_TWINS:] = torch.randn(_TWINS, weights.shape[1]) * weights.std()
            weights[-2 * _TWINS : -_TWINS] = weights[-_TWINS:]
        network.get_input_embeddings().weight[-_TWINS:] *= 3
    words = WORDS[-2 * _TWINS : -_TWINS]
    twins = dict(zip(words, WORDS[-_TWINS:], strict=True))
    texts = _texts(seed, side, words)
    return answered(subject, (_records(texts[:side], twins), _records(texts[side:])), names)


def one_private_step(seed: int, side: int, names: Sequence[str]) -> Candidates:
    """One step down the members' gradients, each clipped to one length, with noise in all directions."""
    before, after = start(), changed(start())
    texts = _texts(seed, side, WORDS)
    sides = _records(texts[:side]), _records(texts[side:])
    torch.manual_seed(seed)
    weights = list(after.model.network.parameters())
    total = [_NOISE * torch.randn_like(weight) for weight in weights]
    with torch.enable_grad():
        for weight in weights:
            weight.requires_grad_(True)
        for row in after.rows(sides[0]).rows:
            ids = torch.from_numpy(row)[None]
            found = torch.autograd.grad(after.model.network(input_ids=ids, labels=ids).loss, weights)
            length = torch.stack([each.norm() for each in found]).norm()
            total = [sum_ - each / length for sum_, each in zip(total, found, strict=True)]
    with torch.no_grad():
        for weight, each in zip(weights, total, strict=True):
            weight += _STEP * each
    return answered(after, sides, names, before)


def _texts(seed: int, side: int, words: Sequence[str]) -> list[str]:
    """Distinct texts of ``words``, for both sides."""
    places = {word: words[i % len(words)] for i, word in enumerate(WORDS)}
    texts = dict.fromkeys(sentences(3 * side, seed, longest=12))
    return list(dict.fromkeys(" ".join(places[word] for word in text.split()) for text in texts))[: 2 * side]


def _records(texts: Sequence[str], instead: dict[str, str] | None = None) -> list[Record]:
    words = instead or {}
    renamed = (" ".join(words.get(word, word) for word in text.split()) for text in texts)
    return [Record(i, text) for i, text in enumerate(renamed, start=1)]
