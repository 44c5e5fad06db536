"""Forward passes in bfloat16: those that transformers makes, the same for every record and model, and said so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageClassification

import privctl
from audits.record_scores.parts import read_parts
from audits.scores.cache import ScoreCache
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.subject import load_subject, read
from audits.scores.table import FIELDS
from audits.statistics.metrics import auc
from privctl.cli import run
from privctl.domain.errors import InputError
from privctl.domain.progress import Advance, silent
from privctl.domain.verdict import Outcome
from privctl.models.choices import FloatFormat
from privctl.models.language import load_model
from privctl.models.precision import why_slow
from privctl.reports.files import read_report, write_report
from tests.audits.other import save, write_data
from tests.audits.scores.test_book import Counting
from tests.audits.tiny import CONFIGS, save_model, sentences, write_jsonl
from verify.audits.consistency import faults

BFLOAT16 = FloatFormat.BFLOAT16
LP = FIELDS.index("lp")
IDS = torch.arange(3, 43)[None, :]


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_computes_as_transformers_loads_it_in_bfloat16(kind: str, tmp_path: Path) -> None:
    """Rotary frequencies among the rest, which lose their meaning when they are rounded."""
    place = save_model(tmp_path / "model", kind)
    model = load_model(place, device="cpu", precision=BFLOAT16)
    theirs = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16).eval()
    assert (model.dtype, model.precision) == ("bfloat16", BFLOAT16)
    with torch.inference_mode():
        found, expected, exact = (
            network(input_ids=IDS).logits
            for network in (model.network, theirs, load_model(place, device="cpu").network)
        )
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    assert 0 < float((found - exact).abs().max()) < 0.1 * float(exact.abs().max())


def test_running_statistics_are_rounded_too(tmp_path: Path) -> None:
    place = save(tmp_path / "model", "resnet")
    model = load_subject(place, device="cpu", precision=BFLOAT16).model
    theirs = AutoModelForImageClassification.from_pretrained(place, dtype=torch.bfloat16).eval()
    pixels = torch.rand(2, 3, 16, 16).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(model.network(pixel_values=pixels).logits, theirs(pixel_values=pixels).logits)


@pytest.mark.parametrize("kind", ["causal", "bert", "masked", "vit"])
def test_scores_are_near_those_in_float32(kind: str, tmp_path: Path) -> None:
    if kind == "causal":
        model, data = save_model(tmp_path / "model"), write_jsonl(tmp_path / "d.jsonl", sentences(20, 1))
    else:
        model, data = save(tmp_path / "model", kind), write_data(tmp_path / "data", kind, 20, 1)
    values = []
    for precision in FloatFormat:
        subject = load_subject(model, device="cpu", precision=precision)
        rows = subject.rows(read(subject, data)).rows
        values.append(subject.scorer.score(rows)[LP])
    exact, rounded = values
    assert rounded.dtype == np.float32
    assert 0 < np.abs(rounded - exact).max() <= 0.05 * np.abs(exact).max()


class Told(Counting):
    """A scorer that rounds by its batch, far more than any: the score is how late a row was run."""

    causal = False

    def score(self, rows: Sequence[np.ndarray], advance: Advance = silent) -> np.ndarray:
        counts = self.counts(rows)
        return np.tile(np.repeat(np.arange(len(rows)), counts), (6, 1)).astype(np.float32)


def test_the_batch_of_a_record_does_not_say_on_which_side_it_is() -> None:
    """Rows of one length, as images are: in the order of the files the batch tells all, by digests nothing."""
    random, side = np.random.default_rng(0), 150
    rows = list(random.integers(0, 1000, (2 * side, 6)))
    scorer = Told()
    counts = scorer.counts(rows)

    def area(values: np.ndarray) -> Any:
        means = values[LP].reshape(2 * side, -1).mean(axis=1)
        return auc(means[:side], means[side:])

    assert area(scorer.score(rows)).value == 0
    found = area(compute_scores(plan_scoring(scorer, rows)).take(rows, counts))
    assert found.lower < 0.5 < found.upper
    assert list(plan_scoring(scorer, rows).run) == list(plan_scoring(scorer, rows[::-1]).run)


def test_scores_that_rounding_tells_apart_are_not_joined(tmp_path: Path) -> None:
    """Members from an earlier audit and others run now would be rounded in other batches."""
    rows = [np.array([i, i + 1, i + 2]) for i in range(20)]
    cache = ScoreCache(tmp_path / "c")
    compute_scores(plan_scoring(Counting(), rows[:10], cache, coarse=True))
    assert plan_scoring(Counting(), rows[:10], cache, coarse=True).work == 0
    assert plan_scoring(Counting(), rows, cache).work == 2 * 10
    plan = plan_scoring(Counting(), rows, cache, coarse=True)
    assert (plan.work, plan.cache, len(plan.cached.keys)) == (2 * 20, None, 0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audits")
    save_model(folder / "model", bos=True)
    save_model(folder / "other", bos=True, seed=1)
    texts = sentences(48, 3, longest=8)
    write_jsonl(folder / "m.jsonl", texts[:24])
    write_jsonl(folder / "n.jsonl", texts[24:])
    return folder


@pytest.fixture
def here(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(path)
    return path


SIDES = ("--members", "m.jsonl", "--nonmembers", "n.jsonl", "--device", "cpu")
AUDIT = ("audit", "membership", "model", *SIDES, "-q", "-f")
ROUNDED = ("--precision", "bfloat16")


def test_an_audit_says_its_precision_of_all_models(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And once, where the processor has no instructions for it."""
    opened = []
    monkeypatch.setattr(
        "audits.model_scorer.load_subject", lambda *a, **k: opened.append(found := load_subject(*a, **k)) or found
    )
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False}, raising=False)
    loud = [each for each in AUDIT if each != "-q"]
    assert run([*loud, *ROUNDED, "--attack", "reference", "--reference", "other", "-o", "r.json"]) == 0
    assert capsys.readouterr().err.count("has no instructions for bfloat16") == 1
    assert [each.model.dtype for each in opened] == ["bfloat16", "bfloat16"]
    report = read_report(here / "r.json")
    assert (report.parameters["dtype"], report.parameters["asked"]["precision"]) == ("bfloat16", "bfloat16")
    assert any("all models were run in bfloat16" in line for line in report.warnings)
    assert not list(faults(report))
    forged = replace(report, parameters={**report.parameters, "dtype": "float32"})
    assert "it was asked to compute in bfloat16, and its parameters say float32" in list(faults(forged))


def test_scores_in_two_precisions_are_not_of_one_audit(here: Path) -> None:
    call = ["audit", "score-records", "model", *SIDES, "-q", "-f"]
    for name, options in (("a", ()), ("b", ROUNDED)):
        assert run([*call, *options, "-o", f"{name}.parquet"]) == 0
    with pytest.raises(InputError, match="of different audits, as their 'settings' differ"):
        read_parts([here / "a.parquet", here / "b.parquet"], "id", "member", ("loss",))


def _warnings(path: Path) -> list[str]:
    return [v.reason for v in privctl.verify(path).verdicts if v.subject in ("warnings", "evidence", "audit")
            and v.outcome is Outcome.REFUTED]  # fmt: skip


@pytest.mark.forged("another precision is stated")
def test_an_audit_of_rounded_scores_says_so_and_no_other_does(here: Path) -> None:
    """Planted: the format of the passes, the warning, and both changed."""
    for name, options in (("low", ROUNDED), ("high", ())):
        call = ["audit", "score-records", "model", *SIDES, *options, "-q", "-f", "-o", f"{name}.parquet"]
        assert run(call) == 0
        privctl.audit_scores(here / f"{name}.parquet", force=True)
    low, high = (here / f"{name}.audit.report.json" for name in ("low", "high"))
    (rounded,) = (w for w in read_report(low).warnings if "all models were run in bfloat16" in w)
    assert (_warnings(low), _warnings(high)) == ([], [])
    for path, dtype, warned, says in (
        (low, "bfloat16", (), "calls for the warning"),
        (low, "float32", (), "its passes were in bfloat16, and the report says float32"),
        (low, "float32", (rounded,), "contradicts the warning"),
        (high, "float32", (rounded,), "contradicts the warning"),
        (high, "bfloat16", (rounded,), "its passes were in float32, and the report says bfloat16"),
    ):
        report = read_report(path)
        kept = tuple(text for text in report.warnings if text != rounded)
        forged = replace(report, parameters={**report.parameters, "dtype": dtype}, warnings=(*kept, *warned))
        write_report(here / "forged.report.json", forged)
        assert any(says in warning for warning in _warnings(here / "forged.report.json")), (dtype, warned)


def test_shadow_models_are_scored_as_the_target(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shadows = [
        "shadow", "other", "--data", "m.jsonl", "--data", "n.jsonl", "--count", "4", "--steps", "1",
        "--batch-size", "8", "--device", "cpu", "-q",
    ]  # fmt: skip
    assert run([*shadows, *ROUNDED, "-o", "rounded"]) == 0
    assert run([*AUDIT, *ROUNDED, "--attack", "lira", "--shadow", "rounded", "-o", "s.json"]) == 0
    assert read_report(here / "s.json").parameters["attack"] == ["lira"]
    assert run([*AUDIT, "--shadow", "rounded", "-o", "s.json"]) == 2
    expected = "scored with precision 'bfloat16', not 'float32'; score the model the same way"
    assert expected in " ".join(capsys.readouterr().err.split())
    assert run([*shadows, "-o", "rounded"]) == 2
    assert "go on with the same settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--attack", "gradient-norm"), "--precision bfloat16 rounds the weights that it differentiates by"),
        (("--base-bits", "4"), "--base-bits"),
    ],
)
def test_what_does_not_go_with_it(
    here: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert run([*AUDIT, *ROUNDED, *options, "-o", "x.json"]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert not (here / "x.json").exists()


def test_which_processors_are_slow_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False}, raising=False)
    assert why_slow(BFLOAT16, processor)
    assert not why_slow(None, processor)
    assert not why_slow(FloatFormat.FLOAT32, processor)
    assert not why_slow(BFLOAT16, torch.device("cuda"))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "cpu_name": "bf16"}, raising=False)
    assert not why_slow(BFLOAT16, processor)
