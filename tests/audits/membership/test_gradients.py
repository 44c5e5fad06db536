"""Attacks by gradients: their scores against independent computations, and leaks that losses hardly show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from audits import load_attack
from audits.membership.attack import ScoreAttack, Settings
from audits.membership.gradients import ALIGNMENT, NORM, Differentiator
from audits.membership.records import prepare
from audits.scores.gradients import gradients, update_between
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.subject import AuditedModel, load_subject, read
from audits.scores.table import FIELDS
from audits.statistics.metrics import auc
from privctl.cli import run
from privctl.data.records import Record
from tests.audits.membership.gradient_leaks import answered, changed, flatter, one_private_step, start
from tests.audits.other import save, sentences, write_data
from tests.audits.tiny import save_model, write_jsonl
from tests.audits.tiny import sentences as texts
from tests.audits.turns import Turns
from tests.few import few
from tests.models.tasks.small import save_pairs_model

KINDS = ("llama", "bert", "vit", "bart")


@pytest.fixture(scope="module")
def moved() -> AuditedModel:
    """The network of ``start`` after a small step anywhere."""
    subject = changed(start())
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in subject.model.network.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return subject


def model_and_records(folder: Path, kind: str) -> tuple[AuditedModel, list[Record]]:
    """A model of ``kind``, and records that it scores."""
    if kind == "llama":
        return start(), [Record(i, text) for i, text in enumerate(texts(4, 1), start=1)]
    if kind == "bart":
        subject = load_subject(save_pairs_model(folder / "m", kind), device="cpu")
        lines = [json.dumps({"source": a, "target": b}) for a, b in zip(sentences(4, 1), sentences(4, 2), strict=True)]
        (folder / "d.jsonl").write_text("\n".join(lines))
        return subject, read(subject, folder / "d.jsonl")
    subject = load_subject(save(folder / "m", kind), device="cpu")
    return subject, read(subject, write_data(folder / "d", kind, 4, 1))


def mean_losses(subject: AuditedModel, rows: list[np.ndarray]) -> np.ndarray:
    """What the scorers of audits, which never differentiate, say of each row."""
    lp = compute_scores(plan_scoring(subject.scorer, rows)).take(rows, subject.scorer.counts(rows))[FIELDS.index("lp")]
    counts = subject.scorer.counts(rows)
    return np.asarray(-np.add.reduceat(lp.astype(np.float64), np.cumsum(counts) - counts) / counts)


@pytest.mark.parametrize("kind", few(KINDS, 0, 1))
def test_a_gradient_is_what_the_audit_s_own_losses_change_by(kind: str, tmp_path: Path) -> None:
    """Differences of losses along the gradient's own direction are its norm, and along a way its part of the cosine."""
    subject, records = model_and_records(tmp_path, kind)
    rows = subject.rows(records).rows
    there = changed(subject)
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in there.model.network.parameters():
            weight += 0.01 * torch.randn_like(weight)
    update = update_between(subject, there)
    found = gradients(subject, rows, update)
    length = float(torch.stack([each.double().norm() for each in update.values()]).norm())

    def along(share: float) -> np.ndarray:
        at = changed(subject)
        with torch.no_grad():
            for name, weight in at.model.network.named_parameters():
                weight += share * update[name]
        return mean_losses(at, rows)

    slope = (along(0.005) - along(-0.005)) / 0.01
    assert -found[:, 0] * found[:, 1] * length == pytest.approx(slope, rel=0.05, abs=2e-3 * np.abs(slope).max())
    assert (np.abs(found[:, 1]) < 1).all()
    assert (found[:, 0] > 0).all()


def test_norms_are_those_of_the_engine_of_private_training(tmp_path: Path) -> None:
    from privctl.train.clipping.engine import PerExample
    from privctl.train.clipping.factors import Clipping

    subject, records = model_and_records(tmp_path, "llama")
    rows = subject.rows(records).rows
    network = changed(subject).model.network.requires_grad_(True)
    for row, (norm, cosine) in zip(rows, gradients(subject, rows), strict=True):
        ids = torch.from_numpy(row)[None]

        def losses(ids: torch.Tensor = ids) -> torch.Tensor:
            logits = network(input_ids=ids, use_cache=False).logits[0, :-1]
            return torch.nn.functional.cross_entropy(logits, ids[0, 1:])[None]

        with PerExample(network, Clipping(norm=1.0)) as engine:
            assert float(engine.accumulate(losses).norms[0]) == pytest.approx(norm, rel=1e-4)
        assert cosine == 0, "no way was given"


def test_processes_share_the_records_and_the_model_is_left_as_it_was(moved: AuditedModel) -> None:
    records = [Record(i, text) for i, text in enumerate(texts(7, 1), start=1)]
    work = prepare(moved, records[:4], records[4:])
    before = {name: (each.clone(), each.requires_grad) for name, each in moved.model.network.named_parameters()}
    workers = Turns()
    alone, shared = (
        Differentiator(subject=moved, reference=start(), workers=each).scores([NORM, ALIGNMENT], work).found
        for each in (Turns(size=1), workers)
    )
    for name in (NORM, ALIGNMENT):
        np.testing.assert_allclose(alone[name], shared[name], rtol=1e-12)
    assert workers.shares == [[1, 1, 1]] * 2, "each process has one of three parts, at either model"
    for name, each in moved.model.network.named_parameters():
        assert torch.equal(each, before[name][0])
        assert each.requires_grad == before[name][1]


@pytest.mark.parametrize(("name", "make"), few([(NORM, flatter), (ALIGNMENT, one_private_step)], 0))
def test_a_leak_that_losses_hardly_show(name: str, make: Callable[..., object]) -> None:
    found = make(1, 60, [name])
    areas = {}
    for each in (name, "loss", "min-k", "min-k++", "reference"):
        attack = load_attack(each)
        assert isinstance(attack, ScoreAttack)
        if not attack.missing(found):
            areas[each] = auc(*found.table.split(attack.score(found, Settings()))).value
    assert areas.pop(name) > max(areas.values()) + 0.05


@pytest.mark.slow
def test_where_nothing_was_trained_nothing_is_found(moved: AuditedModel) -> None:
    """Both sides are drawn alike, and the weights were moved by neither."""
    drawn = list(dict.fromkeys(texts(200, 3, longest=12)))[:160]
    sides = [[Record(i, text) for i, text in enumerate(side)] for side in (drawn[:80], drawn[80:])]
    found = answered(moved, sides, [NORM, ALIGNMENT], start())
    for name in (NORM, ALIGNMENT):
        area = auc(*found.table.split(found.answered[name]), 0.01)
        assert area.lower < 0.5 < area.upper


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gradients")
    save_model(folder / "start")
    save_model(folder / "model", seed=1)
    save_model(folder / "other", kind="gpt2")
    write_jsonl(folder / "m.jsonl", texts(30, 1))
    write_jsonl(folder / "n.jsonl", texts(30, 2))
    return folder


def call(folder: Path, *more: str, kind: str = "membership", model: str = "model") -> int:
    sides = ["--members", str(folder / "m.jsonl"), "--nonmembers", str(folder / "n.jsonl"), "--device", "cpu"]
    return run(["audit", kind, str(folder / model), *sides, *more])


@pytest.mark.slow
def test_an_audit_by_gradients(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from privctl.reports.files import read_report

    chosen = ["--attack", NORM, "--attack", ALIGNMENT, "--reference", str(folder / "start")]
    assert call(folder, *chosen, "-o", str(tmp_path / "r.json")) == 0
    assert f"differentiating each record twice, for {NORM}, {ALIGNMENT}" in capfd.readouterr().err
    areas = {e.method: e for e in read_report(tmp_path / "r.json").evidence if e.quantity == "AUC"}
    assert all(areas[name].sees is not None and areas[name].test is not None for name in (NORM, ALIGNMENT))
    assert call(folder, *chosen, "-o", str(tmp_path / "s.parquet"), kind="score-records") == 0
    apart = ["audit", "scores", str(tmp_path / "s.parquet"), "-o", str(tmp_path / "apart.json")]
    assert run(apart) == 0
    for item in read_report(tmp_path / "apart.json").evidence:
        name = item.method.removeprefix("column ")
        if item.quantity == "AUC":
            assert item.estimate == pytest.approx(areas[name].estimate)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "it needs the model that training began with, given by --reference"),
        (["--reference", "other"], "the model given by --reference has other tensors"),
    ],
)
def test_what_alignment_needs(folder: Path, capfd: pytest.CaptureFixture[str], given: list[str], message: str) -> None:
    more = [str(folder / each) if each == "other" else each for each in given]
    assert call(folder, "--attack", ALIGNMENT, *more) == 2
    assert f"--attack {ALIGNMENT} cannot be run: {message}" in capfd.readouterr().err


def test_what_cannot_be_differentiated_is_said(tmp_path: Path) -> None:
    subject = load_subject(save(tmp_path / "m", "masked"), device="cpu")
    for name, reason in Differentiator(subject=subject).why_not([NORM, ALIGNMENT]).items():
        assert reason == "it differentiates the loss of a whole record, which is not offered for masked-lm", name
