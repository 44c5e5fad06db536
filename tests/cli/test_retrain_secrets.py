"""``privctl retrain dp-sgd --secrets``: from a plan of protection to a model with both guarantees."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audits.lineage import lineage_of
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.secrets.fano import information
from privctl.cli import run
from privctl.domain.errors import RunInterruptedError
from privctl.domain.events import Ledger, SampledGaussian, SecretMixture
from privctl.domain.guarantee import Adjacency, AssumptionState, Notion, PrivacyUnit, RiskMeasure, Status
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import upward
from privctl.models.tasks.language import CausalLanguage
from privctl.reports.files import file_artifact, now, read_report, write_report
from privctl.secrets.protection import Protection, read_protection
from privctl.show.progress import progress
from privctl.storage.digest import file_digest
from privctl.train.methods import method_named
from privctl.train.preparation.prepare import prepare
from privctl.train.run import run_training
from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest, SecretsRequest
from privctl.train.settings.session import Session
from tests.train.preparation.planned import planned, written
from tests.train.state.release_logs import begun as logged
from tests.train.state.release_logs import pretend

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
#: Forty records: two drawn in every step, the last ten never.
RATES = (1.0, 1.0, *(0.05 * (1 + i % 4) for i in range(28)), *(0.0,) * 10)
#: Which hold which secret; the last one lies in no record.
SECRETS: tuple[Sequence[int], ...] = ((2, 3, 4), (5, 30, 31), (39,), ())
STEPS = 8


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    drawn = random.Random(0)
    lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9))), "who": str(i % 5)} for i in range(40)]
    path.write_text("\n".join(json.dumps(line) + "\n" for line in lines))  # blank lines are no records
    return path


@pytest.fixture
def protection(data: Path) -> Protection:
    return planned(RATES, SECRETS, data=data, steps=STEPS)


@pytest.fixture
def plan(tmp_path: Path, protection: Protection) -> Path:
    return written(tmp_path / "plan.safetensors", protection)


def retrain(model: Path, data: Path, plan: Path, output: Path, *more: str) -> int:
    call = ["retrain", "dp-sgd", str(model), "--data", str(data), "--secrets", str(plan), "-o", str(output)]
    return run([*call, "--device", "cpu", "-q", *more])


def report_of(output: Path) -> PrivacyReport:
    return read_report(output.with_name(output.name + ".report.json"))


def test_a_plan_is_followed_and_both_guarantees_are_stated(
    start: Path, data: Path, plan: Path, protection: Protection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    batches: list[list[int]] = []
    honest = CausalLanguage.micro_batches

    def noted(task: CausalLanguage, units: Sequence[int], *rest: int) -> Iterator[list[int]]:
        batches.append(list(units))
        return honest(task, units, *rest)

    monkeypatch.setattr(CausalLanguage, "micro_batches", noted)
    report_path = tmp_path / "plan.safetensors.report.json"
    outputs = (file_artifact("plan", plan, report_path),)
    write_report(report_path, PrivacyReport(step="secrets-plan", created=now(), versions={}, outputs=outputs))
    assert retrain(start, data, plan, tmp_path / "private") == 0
    assert len(batches) == STEPS
    assert all({0, 1} <= set(batch) <= set(range(30)) for batch in batches)

    report = report_of(tmp_path / "private")
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, SampledGaussian)
    assert (event.sample_rate, event.steps) == (1.0, STEPS)
    noise = protection.facts.noise_multiplier
    assert event.noise_multiplier == noise
    record, secret, by_curve = report.guarantees
    assert (record.notion, record.unit) == (Notion.APPROXIMATE_DP, PrivacyUnit.EXAMPLE)
    assert record.epsilon == pytest.approx(epsilon_bound(report.mechanism, record.delta), rel=1e-5)
    assert {a.name: a.state for a in record.assumptions}["plan"] is AssumptionState.ASSERTED

    assert (secret.notion, secret.unit) == (Notion.SECRET_PROTECTION, PrivacyUnit.SECRET)
    assert (secret.adjacency, secret.status, secret.delta) == (Adjacency.ZERO_OUT, Status.CONDITIONAL, 0)
    mixture = SecretMixture(probabilities=RATES[2:5], noise_multiplier=noise, steps=STEPS)
    assert secret.epsilon == pytest.approx(information(mixture), rel=1e-10)
    assert by_curve.risks[0].bound < secret.risks[0].bound
    assert "every one of 4 secrets stays within its posterior" in secret.note
    (risk,) = secret.risks
    assert (risk.measure, risk.at) == (RiskMeasure.POSTERIOR, 0.01)
    assert 0.19 < risk.bound < 0.2 + 1e-7  # what noise in floating point may add
    assert {"book of secrets", "priors", "starting weights", "secret noise"} <= {a.name for a in secret.assumptions}

    facts = report.parameters["plan"]
    assert facts["digest"] == file_digest(plan)
    weights = file_artifact("model", tmp_path / "private" / "model.safetensors", report_path)
    assert lineage_of(tmp_path / "private", [weights], report_path).planned_by == (file_digest(plan),)
    assert (facts["form"], facts["cap"], facts["secrets"], facts["secrets_checked"]) == ("reference", 5.0, 4, 4)
    assert facts["kept_fraction"] == pytest.approx(sum(RATES) / 40)
    assert facts["expected_epochs"] == pytest.approx(STEPS * sum(RATES) / 40)
    assert facts["records_never_drawn"] == 10
    assert [a.digest for a in report.inputs if a.role == "plan"] == [file_digest(plan)]
    assert [p.digest for p in report.parents] == [file_digest(report_path)]

    stdout = " ".join(capsys.readouterr().out.split())
    assert "secret protection, mutual information: " in stdout
    assert "secret protection, trade-off curve: " in stdout
    assert "every one of 4 secrets" in stdout
    assert f"epsilon {upward(record.epsilon)} at delta 1e-05" in stdout
    assert "probability 0.2" in stdout
    assert "where a blind guess has 0.01" in stdout
    assert run(["inspect", str(tmp_path / "private"), "-q"]) == 0
    assert run(["verify", str(tmp_path / "private.report.json"), "-q"]) == 0
    verify_stdout = " ".join(capsys.readouterr().out.split())
    assert "nats about a secret" in verify_stdout
    assert "secrets-plan at" in verify_stdout


def test_a_plan_by_the_curve_is_followed_and_verified(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command that plans to a model whose report is proved; at half its noise the report is refuted."""
    book, plan = tmp_path / "secrets.jsonl", tmp_path / "plan.safetensors"
    rows = [{"id": "often", "kind": "word", "records": [2, 3, 4, 5]}, {"id": "once", "kind": "word", "records": [9]}]
    book.write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = ["secrets", "plan", str(data), "--secrets", str(book), "--steps", str(STEPS), "--batch-size", "8"]
    assert run([*call, "--prior", "0.01", "--posterior", "0.2", "-o", str(plan), "-q"]) == 0
    assert retrain(start, data, plan, tmp_path / "private") == 0
    record, by_curve, by_fano = report_of(tmp_path / "private").guarantees
    held = read_protection(plan).facts
    assert held.fano_noise_multiplier is not None
    assert record.noise_multiplier == held.noise_multiplier < 0.8 * held.fano_noise_multiplier
    assert by_curve.name == "secret protection, trade-off curve"
    assert 0.199 < by_curve.risks[0].bound <= 0.2 < by_fano.risks[0].bound
    assert "every one of 2 secrets stays within its posterior" in by_curve.note
    report = tmp_path / "private.report.json"
    capsys.readouterr()
    assert run(["verify", str(report), "-q"]) == 0
    assert "PROVED secret protection, trade-off curve" in " ".join(capsys.readouterr().out.split())
    forged = json.loads(report.read_text())
    forged["guarantees"][1]["risks"][0]["bound"] *= 0.99
    report.write_text(json.dumps(forged))
    assert run(["verify", str(report), "-q"]) == 1


def test_what_is_announced(
    start: Path, data: Path, plan: Path, protection: Protection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["retrain", "dp-sgd", str(start), "--data", str(data), "--secrets", str(plan), "-o", str(tmp_path / "a")]
    assert run([*call, "--device", "cpu"]) == 0
    stderr = capsys.readouterr().err
    assert f"{STEPS} steps, noise multiplier {protection.facts.noise_multiplier:.6g}" in stderr
    assert f"4 secrets; {sum(RATES):g} expected records per step, {STEPS * sum(RATES) / 40:.3g} epochs" in stderr


@pytest.mark.slow
def test_settings_may_repeat_the_plan_and_ask_for_more_noise(start: Path, data: Path, tmp_path: Path) -> None:
    """The batch size has a default, which is not the user's word."""
    whole = written(tmp_path / "whole.safetensors", planned((0.25,) * 40, [(1, 2)], data=data, steps=STEPS))
    noise = str(2 * read_protection(whole).facts.noise_multiplier)
    same = ("--batch-size", "10", "--steps", str(STEPS), "--noise-multiplier", noise)
    assert retrain(start, data, whole, tmp_path / "a", *same) == 0
    record, secret, _ = report_of(tmp_path / "a").guarantees
    assert record.noise_multiplier == secret.noise_multiplier == float(noise)
    assert secret.risks[0].bound < 0.1
    assert record.epsilon is not None
    call = ("--epochs", "2", "--epsilon", str(record.epsilon / 2))
    assert retrain(start, data, whole, tmp_path / "b", *call) == 0
    tighter, quieter, _ = report_of(tmp_path / "b").guarantees
    assert tighter.epsilon is not None
    assert tighter.epsilon <= record.epsilon / 2
    assert quieter.risks[0].bound < secret.risks[0].bound


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--unit", "who"), 2, "--unit cannot be combined with --secrets"),
        (("--task", "image-classification"), 2, "--secrets needs texts"),
        (("--batch-size", "64"), 2, "--batch-size is 64"),
        (("--steps", "9"), 2, "--steps asks for 9 steps"),
        (("--noise-multiplier", "0.1"), 2, "need at least"),
        (("--secrets", "none.safetensors"), 3, "none.safetensors"),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(
    more: tuple[str, ...], code: int, words: str, start: Path, data: Path, plan: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = sorted(p.name for p in tmp_path.iterdir())
    assert retrain(start, data, plan, tmp_path / "a", *more) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_plans_that_do_not_fit_get_one_sentence(
    start: Path, data: Path, plan: Path, protection: Protection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(data.read_text() + '{"text": "a cat"}\n')
    fewer = written(tmp_path / "fewer.safetensors", planned(RATES[:39], SECRETS[:2], data=data, steps=STEPS))
    none = written(tmp_path / "none.safetensors", planned(RATES, [], data=data, steps=STEPS, noise=1.0))
    lying = written(tmp_path / "lying.safetensors", replace(protection, information=np.full(4, 1e-6)))
    facts = replace(protection.facts, batch_size=1.0)
    fuller = written(tmp_path / "fuller.safetensors", replace(protection, facts=facts))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(plan.read_bytes())
    before = sorted(p.name for p in tmp_path.iterdir())
    cases = [
        (other, plan, ["was made for train.jsonl", "other.jsonl is another file or has changed"]),
        (data, fewer, ["is a plan for 39 records, but the data has 40"]),
        (data, none, ["protects no secret"]),
        (data, lying, ["it says that its run gives away 1e-06 nats"]),
        (data, fuller, ["it states 1 records per batch, but its probabilities sum to 5.5;"]),
        (data, start / "tokenizer.json", ["tokenizer.json"]),
        (data, start, ["start"]),
    ]
    for train, plan_path, parts in cases:
        assert retrain(start, train, plan_path, tmp_path / "a") == 3
        error = capsys.readouterr().err
        assert all(part in error for part in parts), error
        assert error.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_secrets_of_one_field_do_not_protect_another(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In six texts stands the secret of thirty bodies: by the plan of the texts, hardly anything is learned of it.

    One text would ask for so little noise that to verify the plan takes twenty seconds.
    """
    data, book, plan = tmp_path / "mails.jsonl", tmp_path / "book.jsonl", tmp_path / "plan.safetensors"
    rows = [{"text": "a cat", "body": "ann@mat.example" if i < 30 else "a dog"} for i in range(40)]
    for row in rows[:6]:
        row["text"] = row["body"]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["--steps", "4", "--batch-size", "4", "--cap", "5", "--prior", "0.01", "--posterior", "0.5"]
    planning = ["secrets", "plan", str(data), "--secrets", str(book), *asked, "-o", str(plan), "-q"]
    assert run(["secrets", "scan", str(data), "-o", str(book), "-q"]) == 0
    assert run([*planning, "--text-column", "body"]) == 3
    assert "was made from the usual fields of" in capsys.readouterr().err
    assert run(planning) == 0
    assert retrain(start, data, plan, tmp_path / "private", "--text-column", "body") == 3
    assert "was made for other texts of" in capsys.readouterr().err
    assert not (tmp_path / "private").exists()
    for each in (book, plan):
        each.unlink()
        each.with_name(f"{each.stem}.report.json").unlink()
    assert run(["secrets", "scan", str(data), "-o", str(book), "-q", "--text-column", "body"]) == 0
    assert run([*planning, "--text-column", "body"]) == 0
    assert retrain(start, data, plan, tmp_path / "private", "--text-column", "body") == 0


def test_a_run_is_resumed_with_its_own_plan(
    start: Path, data: Path, plan: Path, protection: Protection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = RetrainRequest(
        method=method_named("dp-sgd"),
        model=ModelRequest(path=start),
        data=DataRequest(train=data),
        output=tmp_path / "a",
        secrets=SecretsRequest(plan=plan),
        device="cpu",
    )
    with pytest.raises(RunInterruptedError):
        run_training(prepare(request), Session(progress=quiet, interrupts=nullcontext(lambda: True)))
    begun = tmp_path / "a.run" / "begun"
    assert logged(begun) == 1
    other = written(tmp_path / "other.safetensors", replace(protection, ids=("a", "b", "c", "d")))
    assert retrain(start, data, other, tmp_path / "a", "--resume") == 2
    assert "was begun with another file as --secrets; resume with the same settings" in capsys.readouterr().err
    # Steps that were begun and lost count: what was given away of a secret is what all steps together may have.
    pretend(begun, STEPS - 2)
    assert retrain(start, data, plan, tmp_path / "a", "--resume") == 0
    report = report_of(tmp_path / "a")
    assert (report.parameters["updates"], report.parameters["steps_begun"]) == (3, STEPS)
    assert "every one of 4 secrets" in report.guarantees[1].note


def quiet(label: str, total: float, unit: str):  # type: ignore[no-untyped-def]
    return progress(label, total, unit, quiet=True)


def test_only_dp_sgd_takes_a_plan(start: Path, data: Path, plan: Path, tmp_path: Path) -> None:
    for method in ("clipped", "plain", "ferret"):
        call = ["retrain", method, str(start), "--data", str(data), "-o", str(tmp_path / "a"), "--secrets", str(plan)]
        assert run(call) == 2


@pytest.mark.slow
def test_dpquant_takes_a_plan_where_it_measures_nothing(
    start: Path, data: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["retrain", "dpquant", str(start), "--data", str(data), "--secrets", str(plan), "--format", "luq-fp4"]
    usual = ["--device", "cpu", "-q", "-o", str(tmp_path / "a")]
    assert run([*call, *usual, "--sensitivity", "private"]) == 2
    assert "--secrets cannot be combined with --sensitivity private" in capsys.readouterr().err
    assert run([*call, *usual, "--layers", "random"]) == 0
    record, secret, _ = report_of(tmp_path / "a").guarantees
    assert (record.notion, secret.notion) == (Notion.APPROXIMATE_DP, Notion.SECRET_PROTECTION)
    for guarantee in (record, secret):
        assert "rounding by example" in {a.name for a in guarantee.assumptions}
