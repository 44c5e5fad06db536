"""What a file of scores gives away: texts are searched for with the model and every array that the file holds."""

from __future__ import annotations

import itertools
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.stats import rankdata

from audits.membership.records import candidates_of, prepare
from audits.scores.causal import CausalSubject
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.scores_file import arrays_of, ranks_of, staged_scores
from audits.scores.table import ScoreTable
from audits.statistics.metrics import auc
from privctl.cli import run
from privctl.data.records import Record
from privctl.models.language import LanguageModel, load_model
from privctl.storage.reader import SafetensorsFile
from tests.audits.tiny import WORDS, save_model, sentences, write_jsonl

PRIVATE = sentences(30, seed=11, longest=12)
#: How far a log-probability may be off.
_NEAR = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    save_model(folder / "model", bos=True)
    write_jsonl(folder / "members.jsonl", PRIVATE)
    write_jsonl(folder / "nonmembers.jsonl", sentences(40, seed=12))
    command = ["audit", str(folder / "model"), "--members", str(folder / "members.jsonl")]
    assert run([*command, "--nonmembers", str(folder / "nonmembers.jsonl"), "--device", "cpu", "-q"]) == 0
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load_model(folder / "model", device="cpu")


def table_of(model: LanguageModel) -> ScoreTable:
    subject = CausalSubject(model)
    found = [[Record(i, text) for i, text in enumerate(texts, 1)] for texts in (PRIVATE, [*sentences(40, 12), ""])]
    work = prepare(subject, *found)
    return candidates_of(work, compute_scores(plan_scoring(subject.scorer, work.rows))).table


def rebuilt(model: LanguageModel, lp: np.ndarray, offsets: np.ndarray) -> Iterator[str]:
    """Each text whose tokens have these log-probabilities: a beam of every beginning that still fits."""
    for begin, end in itertools.pairwise(offsets):
        beam = [[1]]
        for value in lp[begin:end]:
            logits = model.network(input_ids=torch.tensor(beam)).logits[:, -1]
            fits = (torch.log_softmax(logits, -1) - float(value)).abs() < _NEAR
            beam = [[*beam[i], int(token)] for i, token in fits.nonzero().tolist()][:64]
            if not beam:
                break
        yield model.tokenizer.decode(beam[0][1:]) if beam else ""


def test_scores_of_tokens_rebuild_texts(model: LanguageModel) -> None:
    """Why they are not kept: this is what the file held once."""
    table = table_of(model)
    members = table.offsets[: len(PRIVATE) + 1]
    found = list(rebuilt(model, table.lp, members))
    assert sum(a == b for a, b in zip(found, PRIVATE, strict=True)) >= 28


def test_the_file_holds_nothing_to_rebuild_from(folder: Path, model: LanguageModel) -> None:
    path = folder / "model.audit.scores.safetensors"
    with SafetensorsFile(path) as file:
        arrays = {
            t.name: np.frombuffer(file.read(t), {"F32": "<f4", "F64": "<f8"}[t.dtype]).ravel()
            for t in file.tensors
            if t.dtype in ("F32", "F64")
        }
        # ROC curves, and areas under curves of a classifier that never saw the model, are of all records together.
        together = ("roc.", "baseline.area")
        sizes = {len(array) for name, array in arrays.items() if not name.startswith(together)}
    assert sizes == {len(load_file(path)["member"])}, "one number a record"
    texts = set(PRIVATE)
    lengths = np.cumsum([0, *(len(text.split()) for text in PRIVATE)])
    for array in arrays.values():
        padded = np.resize(array, lengths[-1])
        for values in (padded, -padded):
            assert not texts & set(rebuilt(model, values, lengths))


def test_the_file_does_not_tell_a_short_text_from_others(folder: Path, model: LanguageModel) -> None:
    """Two words are few enough to try all: the mean that the report rests on would tell them, a rank does not."""
    first = torch.log_softmax(model.network(input_ids=torch.tensor([[1]])).logits[0, -1], -1)
    second = torch.log_softmax(
        model.network(input_ids=torch.tensor([[1, i + 3] for i in range(len(WORDS))])).logits[:, -1], -1
    )
    means = ((first[3:, None] + second[:, 3:]) / 2).numpy().astype(np.float64)
    true = means[5, 9]
    assert (np.abs(means - true) < 1e-6).sum() <= 2
    scores = np.append(np.linspace(-9, 0, 40), true)
    held = ranks_of(scores)
    same = [v for v in means.ravel() if ranks_of(np.append(scores[:-1], v))[-1] == held[-1]]
    assert len(same) > 20


def test_the_file_is_the_owners(folder: Path) -> None:
    assert stat.S_IMODE((folder / "model.audit.scores.safetensors").stat().st_mode) == 0o600
    with SafetensorsFile(folder / "model.audit.scores.safetensors") as file:
        assert "not for release" in file.metadata["privctl.private"]


def test_no_cache_is_made_unless_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shutil.copytree(folder, tmp_path / "place")
    sides = [f for side in ("members", "nonmembers") for f in (f"--{side}", str(tmp_path / "place" / f"{side}.jsonl"))]
    command = ["audit", str(tmp_path / "place" / "model"), *sides, "--device", "cpu", "-q", "-f", "--attack", "loss"]
    assert run(command) == 0
    assert not (tmp_path / "privctl").exists()
    assert run([*command, "--keep-scores"]) == 0
    (path,) = (tmp_path / "privctl" / "scores").glob("*/*.scores")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    capfd.readouterr()
    assert run([*command, "--keep-scores", "--no-cache"]) == 2
    assert "remove one" in capfd.readouterr().err


def test_ranks_have_the_curve_of_their_scores() -> None:
    rng = np.random.default_rng(0)
    scores = np.round(rng.normal(size=300), 2)
    member = rng.random(300) < 0.4
    ranks = ranks_of(scores)
    assert np.array_equal(ranks, rankdata(scores))
    assert auc(ranks[member], ranks[~member]).value == auc(scores[member], scores[~member]).value
    scores[[3, 7]] = np.nan, -np.inf
    assert np.isnan(ranks_of(scores)[[3, 7]]).all()
    assert np.nanmax(ranks_of(scores)) <= 298


def test_what_is_kept_survives_the_file(model: LanguageModel, tmp_path: Path) -> None:
    table = table_of(model)
    scores = table.means(table.lp)
    values = {"score.loss": scores, "secret.loss": scores, "canary.nll": scores}
    for name in ("a", "b"):
        with staged_scores(
            tmp_path / name, {**arrays_of(table), **values}, {"privctl.report": "x.report.json"}
        ) as pending:
            pending.commit()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found = load_file(tmp_path / "a")
    assert np.array_equal(found["member"], table.member)
    assert np.array_equal(found["score.loss"], rankdata(scores))
    assert found["skipped_line"].tolist() == [41]
    assert found["secret.loss"] == pytest.approx(scores, rel=2**-8)
    assert len(np.unique(found["secret.loss"])) < len(scores)
    assert np.array_equal(found["canary.nll"], scores), "canaries are made up"
