"""What ``privctl retrain`` says at the end: before and after, every epoch, and an accuracy at chance."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.evidence import MOST_FREQUENT, Evidence
from privctl.domain.guarantee import Assumption, AssumptionState, Risk, RiskMeasure, Status
from privctl.reports.files import read_report
from privctl.show.text.retrain import _at_chance, _still_falling, retrain_text
from tests.models.tasks.small import architecture, same_records, words
from tests.show.made import trained


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    lines = [{"text": ("the cat sat" if i % 2 else "a dog on mat"), "label": str(i % 2)} for i in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    folder = architecture(tmp_path / "classifier", "bert")
    words().tokenizer.save_pretrained(folder)
    return folder


def summary(method: str, model: Path, data: Path, output: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    call = [
        "retrain",
        method,
        str(model),
        "--data",
        str(data),
        "--held-out",
        str(same_records(data)),
        "-o",
        str(output),
    ]
    assert run([*call, "--batch-size", "12", "--device", "cpu", "-q", *more]) == 0
    return capsys.readouterr().out


CLASSIFY = ("--task", "text-classification", "--labels", "0,1")


def test_before_and_after_and_every_epoch(
    classifier: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (*CLASSIFY, "--epochs", "6", "--learning-rate", "0.01")
    text = summary("plain", classifier, data, tmp_path / "out", capsys, *more)
    evidence = {item.quantity: item for item in read_report(tmp_path / "out.report.json").evidence}
    accuracy, loss = evidence["held-out accuracy"], evidence["held-out loss, nats"]
    assert accuracy.details["before"] <= 0.6
    assert accuracy.estimate == 1
    assert accuracy.details[MOST_FREQUENT] == 0.5
    assert loss.details["before"] > loss.details["epoch 1"] > loss.details["epoch 6"]
    assert re.search(r"measured +before +last epoch", text)
    assert re.search(rf"held-out loss, nats +{loss.details['before']:.5g} +{loss.estimate:.5g}", text)
    assert len(re.findall(r"^ *[1-6](?= .*\d)", text, re.MULTILINE)) == 6
    assert "at chance" not in text


def test_guarantees_come_first_and_epochs_that_were_noted_are_not_repeated() -> None:
    loss = Evidence(
        method="m", quantity="held-out loss, nats", estimate=1.0, details={"before": 3.0, "epoch 1": 2, "epoch 2": 1}
    )
    report = trained(evidence=(loss,))
    text = retrain_text(report, epochs=False)
    assert text.index("epsilon") < text.index("measured")
    assert not re.search(r"^ *epoch ", text, re.MULTILINE)
    assert re.search(r"^ *epoch ", retrain_text(report), re.MULTILINE)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {},
            "An attacker who sees the model can tell with at most 76.7 % accuracy whether one given example was used; "
            "guessing has 50 %. This follows if 1 assumption holds that nothing enforces.",
        ),
        ({"guarantees": ()}, "Nothing limits what this model reveals: no privacy guarantee follows."),
        ({"claimed": True}, "Nothing limits what this model reveals: no privacy guarantee follows."),
        ({"risks": ()}, ""),
    ],
    ids=["conditional", "none", "claimed", "no number"],
)
def test_the_first_sentence_is_for_those_who_read_no_epsilon(change: dict[str, Any], sentence: str) -> None:
    report = trained()
    guarantee = replace(
        report.guarantees[0],
        status=Status.CLAIMED if change.get("claimed") else Status.CONDITIONAL,
        assumptions=(Assumption(name="vocabulary", statement="s", state=AssumptionState.ASSERTED),),
        risks=change.get("risks", (Risk(measure=RiskMeasure.ADVANTAGE, bound=0.533),)),
    )
    text = " ".join(retrain_text(replace(report, guarantees=change.get("guarantees", (guarantee,)))).split())
    assert text.startswith(sentence or "epsilon")


def test_assumptions_that_two_guarantees_share_are_printed_once() -> None:
    guarantee = trained().guarantees[0]
    text = retrain_text(trained(guarantees=(guarantee, replace(guarantee, name="another"))))
    assert text.count(guarantee.assumptions[1].statement) == 1
    assert f"listed under {guarantee.name!r}" in " ".join(text.split())


@pytest.mark.slow
def test_a_private_run_s_epochs_are_held_out_ones_alone(
    classifier: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (*CLASSIFY, "--epochs", "2", "--noise-multiplier", "30")
    text = summary("dp-sgd", classifier, data, tmp_path / "out", capsys, *more)
    assert "held-out accuracy" in text
    assert "training loss" not in text
    assert "median gradient norm" not in text


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("plain", marks=pytest.mark.slow), "ferret"])
def test_a_resumed_run_knows_what_was_before(
    method: str,
    start: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = () if method == "plain" else ("--release", "gaussian", "--epsilon", "3")
    summary(method, start, data, tmp_path / "whole", capsys, "--epochs", "2", *budget)
    whole = read_report(tmp_path / "whole.report.json")
    call = [
        "retrain",
        method,
        str(start),
        "--data",
        str(data),
        "--held-out",
        str(same_records(data)),
        "-o",
        str(tmp_path / "out"),
    ]
    more = [*call, "--batch-size", "12", "--device", "cpu", "-q", "--epochs", "2", *budget]

    def fails(*args: object, **more: object) -> object:
        raise MemoryError

    with monkeypatch.context() as patched:
        name = "runs.gradient_training" if method == "plain" else "methods.ferret.run"
        patched.setattr(f"privctl.train.{name}.save_network", fails)
        assert run(more) == 4
    assert run([*more, "--resume"]) == 0
    resumed = read_report(tmp_path / "out.report.json")
    first, second = (
        next(item.details["before"] for item in report.evidence if item.quantity == "held-out loss, nats")
        for report in (whole, resumed)
    )
    assert first == second


def test_an_accuracy_at_chance_is_said() -> None:
    def item(accuracy: float, count: int) -> Evidence:
        return Evidence(
            method="m",
            quantity="held-out accuracy",
            estimate=accuracy,
            samples={"examples": count},
            details={MOST_FREQUENT: 0.5},
        )

    assert list(_at_chance(item(0.5, 100)))
    assert list(_at_chance(item(0.59, 100)))
    assert not list(_at_chance(item(0.61, 100)))
    assert not list(_at_chance(item(0.59, 10_000)))


@pytest.mark.parametrize(
    ("before", "losses", "said"),
    [(8.0, (5.0, 4.0, 3.7), True), (8.0, (4.0, 3.9, 3.75), False), (8.0, (4.0, 3.0, 3.5), False), (8.0, (3.7,), False)],
)
def test_a_loss_that_still_falls_is_said(before: float, losses: tuple[float, ...], said: bool) -> None:
    """The last epoch brings 0.3 of 4.3 nats, 0.15 of 4.25, a rise, or is the only one."""
    details = {"before": before} | {f"epoch {i}": loss for i, loss in enumerate(losses, 1)}
    item = Evidence(method="m", quantity="held-out loss, nats", estimate=losses[-1], details=details)
    assert ("--learning-rate" in "".join(_still_falling(item))) == said
    assert not list(_still_falling(replace(item, quantity="held-out perplexity")))


def test_what_a_search_chose_is_said() -> None:
    search = {"settings": "learning-rate=1e-3,1e-2 clip-norm=0.5,1", "expected_runs": 2.0}
    report = trained(parameters={"search": search, "learning_rate": 0.01, "clip_norm": 0.5})
    said = "the search chose --learning-rate 0.01 and --clip-norm 0.5, by the held-out loss"
    assert said in " ".join(retrain_text(report).split())
    assert "the search chose" not in retrain_text(trained(parameters={"learning_rate": 0.01}))
