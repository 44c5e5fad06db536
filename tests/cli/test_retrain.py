"""``privctl retrain``: the three methods end to end, resume, every task, mistakes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from privctl.accounting.ledger import epsilon_bound
from privctl.cli import run
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.guarantee import Adjacency, AssumptionState, RiskMeasure, Status
from privctl.domain.mechanism import ClippedTraining
from privctl.domain.report import PrivacyReport
from privctl.models.tasks.language import CausalLanguage
from privctl.reports.files import read_report
from privctl.storage.reader import open_checkpoint
from tests.cli.killed import ended
from tests.few import few
from tests.forked import Forked
from tests.models.tasks import small
from tests.models.tasks.small import architecture, same_records
from tests.train.state.release_logs import begun as logged
from tests.train.state.release_logs import pretend

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return records(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model after plain training on other records, with its report beside it; it must not be changed."""
    folder = tmp_path_factory.mktemp("trained")
    start = architecture(folder / "start", "gpt2", n_layer=1)
    small.words().tokenizer.save_pretrained(start)
    assert retrain("plain", start, records(folder, 1), folder / "plain") == 0
    return folder / "plain"


def records(folder: Path, seed: int = 0) -> Path:
    path = folder / "train.jsonl"
    drawn = random.Random(seed)
    lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9))), "who": str(i % 20)} for i in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def retrain(method: str, model: Path, data: Path, output: Path, *more: str) -> int:
    call = [
        "retrain", method, str(model), "--data", str(data), "-o", str(output), "--batch-size", "20", "--epochs", "1",
    ]  # fmt: skip
    return run([*call, "--micro-tokens", "160", "--device", "cpu", "-q", *more])


def report_of(output: Path) -> PrivacyReport:
    return read_report(output.with_name(output.name + ".report.json"))


def test_dp_sgd_meets_its_budget_and_says_what_it_rests_on(start: Path, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "private"
    more = ("--epsilon", "3", "--held-out", str(same_records(data)), "--batch-size", "12")
    assert retrain("dp-sgd", start, data, output, *more) == 0
    report = report_of(output)
    (guarantee,) = report.guarantees
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, SampledGaussian)
    assert (event.sample_rate, event.steps) == (0.2, 5)
    ideal = epsilon_bound(report.mechanism, guarantee.delta)
    assert guarantee.arithmetic is not None
    assert ideal + guarantee.arithmetic.epsilon <= guarantee.epsilon <= min(3.0, ideal + 1e-5)
    assert guarantee.epsilon is not None
    assert 2.99 < guarantee.epsilon <= 3
    # Random weights, and everything enforced but one thing: nobody here saw how the tokenizer was made.
    assert [a.name for a in guarantee.assumptions if a.state is AssumptionState.ASSERTED] == ["vocabulary"]
    assert guarantee.status is Status.CONDITIONAL
    assert "number of examples" in {a.name for a in guarantee.assumptions}
    assert any("keep the report to yourself" in warning for warning in report.warnings)
    assert guarantee.adjacency is Adjacency.ADD_OR_REMOVE
    assert {r.measure for r in guarantee.risks} >= {RiskMeasure.ADVANTAGE}
    assert "operating system" in str(report.parameters["noise_source"])
    assert {e.quantity for e in report.evidence} == {"held-out loss, nats", "held-out perplexity"}
    network = AutoModelForCausalLM.from_pretrained(output)
    tokens = AutoTokenizer.from_pretrained(output)("the cat", return_tensors="pt")
    assert torch.isfinite(network(**tokens).logits).all()
    assert run(["inspect", str(output), "-q"]) == 0
    assert not output.with_name("private.run").exists()


def test_weights_from_a_checkpoint_make_it_conditional(trained: Path, data: Path, tmp_path: Path) -> None:
    assert not report_of(trained).guarantees
    call = ("--noise-multiplier", "2", "--delta", "1e-6")
    assert retrain("dp-sgd", trained, data, tmp_path / "private", *call) == 0
    (guarantee,) = report_of(tmp_path / "private").guarantees
    assert guarantee.status is Status.CONDITIONAL
    assert [a.name for a in guarantee.assumptions if a.state is AssumptionState.ASSERTED] == [
        "starting weights",
        "vocabulary",
    ]
    assert guarantee.delta == 1e-6
    assert guarantee.noise_multiplier == 2


def test_two_runs_differ_though_their_seed_is_one(start: Path, data: Path, tmp_path: Path) -> None:
    """The seed is for public draws; sampling and noise are never repeatable."""
    models = []
    for name in ("a", "b"):
        assert retrain("dp-sgd", start, data, tmp_path / name, "--epsilon", "3") == 0
        models.append((tmp_path / name / "model.safetensors").read_bytes())
    assert models[0] != models[1]


def test_clipped_records_what_noise_needs(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "clipped"
    assert retrain("clipped", start, data, output, "--optimizer", "sgd", "--learning-rate", "0.1", "--epochs", "2") == 0
    assert isinstance(mechanism := report_of(output).mechanism, ClippedTraining)
    assert (mechanism.epochs, mechanism.dataset_size, mechanism.batch_size, mechanism.total_steps) == (2, 60, 20, 6)
    assert {each.stat().st_mode & 0o077 for each in (output, *output.iterdir())} == {0}, "without noise they may leak"
    capsys.readouterr()
    assert run(["noise", str(output), "--epsilon", "1", "-q"]) == 0
    stdout = capsys.readouterr().out
    assert "nonconvex" in stdout
    assert "(conditional)" in stdout


@pytest.mark.parametrize(
    "more",
    [
        ("--clipping", "automatic"),
        ("--clipping", "per-layer"),
        ("--lora-rank", "2"),
        ("--steps", "3"),
        ("--learning-rate", "1", "--weight-decay", "1"),
    ],
)
def test_clipped_refuses_what_its_facts_cannot_say(
    more: tuple[str, ...], start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retrain("clipped", start, data, tmp_path / "a", "--optimizer", "sgd", *more) == 2
    assert more[0] in capsys.readouterr().err or "--weight-decay" in more
    assert not (tmp_path / "a.run").exists()


def test_the_unit_is_whom_the_records_belong_to(start: Path, data: Path, tmp_path: Path) -> None:
    assert retrain("dp-sgd", start, data, tmp_path / "a", "--epsilon", "3", "--unit", "who") == 0
    report = report_of(tmp_path / "a")
    assert report.parameters["examples"] == 20
    assert "'who'" in next(a.statement for a in report.guarantees[0].assumptions if a.name == "unit of privacy")


def test_a_vocabulary_from_the_data_voids_the_guarantee(data: Path, tmp_path: Path) -> None:
    bare = architecture(tmp_path / "bare", "gpt2", n_layer=1)
    assert retrain("dp-sgd", bare, data, tmp_path / "a", "--epsilon", "3", "--vocabulary", "private") == 0
    assert report_of(tmp_path / "a").guarantees[0].status is Status.VOID
    public = tmp_path / "words.txt"
    public.write_text("\n".join(WORDS))
    assert retrain("dp-sgd", bare, data, tmp_path / "b", "--epsilon", "3", "--vocabulary", str(public)) == 0
    assert report_of(tmp_path / "b").guarantees[0].status is Status.CONDITIONAL


@pytest.mark.parametrize("style", few(["flat", "automatic", "per-layer"], 2))
def test_clipping_styles_and_frozen_parameters(style: str, trained: Path, data: Path, tmp_path: Path) -> None:
    call = ("--epsilon", "3", "--clipping", style, "--train", "*ln_*", "--train", "*.c_attn.*")
    assert retrain("dp-sgd", trained, data, tmp_path / "a", *call) == 0
    with open_checkpoint(trained) as before, open_checkpoint(tmp_path / "a") as after:
        changed = {
            x.name
            for (one, x), (two, y) in zip(before.tensors(), after.tensors(), strict=True)
            if one.read(x) != two.read(y)
        }
    assert changed
    assert all("ln_" in name or "c_attn" in name for name in changed)


def test_adapters_are_merged_into_the_weights(trained: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    assert retrain("dp-sgd", trained, data, tmp_path / "a", "--epsilon", "3", "--lora-rank", "2") == 0
    with open_checkpoint(trained) as before, open_checkpoint(tmp_path / "a") as after:
        pairs = list(zip(before.tensors(), after.tensors(), strict=True))
        assert all(x.name == y.name for (_, x), (_, y) in pairs)
        changed = {x.name for (one, x), (two, y) in pairs if one.read(x) != two.read(y)}
    assert changed
    assert all("ln_" not in name and "wte" not in name and "bias" not in name for name in changed)


@pytest.mark.slow
def test_text_classification_and_masked_words(data: Path, tmp_path: Path) -> None:
    bare = architecture(tmp_path / "bert", "bert")
    labelled = tmp_path / "labelled.csv"
    rows = [f"{json.loads(line)['text']},{'yes' if i % 2 else 'no'}" for i, line in enumerate(data.open())]
    labelled.write_text("text,label\n" + "\n".join(rows) + "\n")
    (public := tmp_path / "words.txt").write_text("\n".join(WORDS))
    call, output = ("--epsilon", "8", "--vocabulary", str(public), "--held-out"), tmp_path / "classifier"
    usual = (*call, str(same_records(labelled)), "--task", "text-classification")
    assert retrain("dp-sgd", bare, labelled, output, *usual) == 0
    report = report_of(output)
    assert "held-out accuracy" in {e.quantity for e in report.evidence}
    assert report.guarantees[0].status is Status.VOID  # the classes' names come from the examples
    assert AutoModelForSequenceClassification.from_pretrained(output).config.id2label == {0: "no", 1: "yes"}
    usual = (*call, str(same_records(data)), "--task", "masked-lm")
    assert retrain("dp-sgd", bare, data, tmp_path / "masked", *usual) == 0


@pytest.mark.slow
def test_images_are_trained_on_once_norms_are_frozen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 40)
    images = (draw.integers(0, 100, (40, 16, 16, 3)) + 150 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    net, others = architecture(tmp_path / "resnet", "resnet"), same_records(tmp_path / "images.npz")
    call = ("--epsilon", "8", "--task", "image-classification", "--held-out", str(others))
    assert retrain("dp-sgd", net, tmp_path / "images.npz", tmp_path / "a", *call) == 3
    assert "--norm frozen keeps its running statistics" in capsys.readouterr().err
    assert not (tmp_path / "a.run").exists()
    call = (*call, "--norm", "frozen")
    assert retrain("dp-sgd", net, tmp_path / "images.npz", tmp_path / "a", *call) == 0
    report = report_of(tmp_path / "a")
    assert report.parameters["frozen_norm_layers"] == 6
    assert retrain("dp-sgd", net, tmp_path / "images.npz", tmp_path / "c", *call, "--labels", "0,1") == 0
    found = {a.name: a.state for a in report_of(tmp_path / "c").guarantees[0].assumptions}
    assert [name for name in found if found[name] is AssumptionState.ASSERTED] == ["labels"]
    for flag in ("--unit who", "--long split", "--max-length 9", "--vocabulary private"):
        assert retrain("dp-sgd", net, tmp_path / "images.npz", tmp_path / "d", *call, *flag.split()) == 2
        assert flag.split()[0] in capsys.readouterr().err
    # And what was saved can be trained on, with other images; that its statistics are public is then the user's word.
    np.savez(tmp_path / "more.npz", images=255 - images, labels=labels)
    assert retrain("dp-sgd", tmp_path / "a", tmp_path / "more.npz", tmp_path / "b", *call) == 0
    found = {a.name: a.state for a in report_of(tmp_path / "b").guarantees[0].assumptions}
    assert found["normalisation statistics"] is found["starting weights"] is AssumptionState.ASSERTED


FRESH = pytest.param("plain", signal.SIGINT, True, marks=pytest.mark.slow)  # one from its very start


# tests/train/state/test_interrupts.py sends each signal; clipped runs share the loop and its state with plain ones.
CLIPPED = pytest.param("clipped", signal.SIGTERM, False, marks=pytest.mark.slow)


@pytest.mark.parametrize(("method", "number", "fresh"), [("plain", signal.SIGINT, False), CLIPPED, FRESH])
@pytest.mark.usefixtures("one_thread")
def test_an_interrupted_run_loses_nothing(
    method: str, number: int, fresh: bool, start: Path, data: Path, tmp_path: Path, forked: Forked
) -> None:
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    more = ["--epochs", "4", "--batch-size", "2", "--device", "cpu", "-q"]
    arguments = [["retrain", method, str(start), "--data", str(data), "-o", str(o), *more] for o in (cut, whole)]
    state = tmp_path / "cut.run"
    call = [sys.executable, "-m", "privctl", *arguments[0]]
    own = subprocess.Popen(call, stderr=subprocess.PIPE, text=True) if fresh else None
    begun = own or forked.start(arguments[0], errors=True)
    code, errors = ended(begun, state / "begun", number)
    assert code == 130
    assert errors.count("\n") == 1
    reached = json.loads((state / "state.json").read_text())
    assert f"interrupted after step {reached['step']} of 120; the state was saved in {state}" in errors
    assert "--resume" in errors
    assert reached["step"] == reached["spent"] == logged(state / "begun") < 120
    assert [run([*arguments[0], "--resume"]), run(arguments[1])] == [0, 0]
    with open_checkpoint(cut) as one, open_checkpoint(whole) as two:
        pairs = zip(one.tensors(), two.tensors(), strict=True)
        assert all(a.read(x) == b.read(y) for (a, x), (b, y) in pairs)
    resumed, entire = report_of(cut).parameters, report_of(whole).parameters
    assert resumed["history"] == entire["history"]
    assert (resumed["updates"], resumed["steps_begun"]) == (120, 120)


@pytest.mark.slow
def test_a_killed_run_goes_on_and_its_ledger_has_everything(
    start: Path, data: Path, tmp_path: Path, forked: Forked
) -> None:
    output = tmp_path / "private"
    call = [
        "retrain", "dp-sgd", str(start), "--data", str(data), "-o", str(output),
        "--batch-size", "12", "--epochs", "400", "--noise-multiplier", "4", "--device", "cpu", "-q",
    ]  # fmt: skip
    begun = output.with_name("private.run") / "begun"
    assert ended(forked.start(call, errors=True), begun, signal.SIGKILL) == (-signal.SIGKILL, "")
    assert not output.exists()
    spent = logged(begun)
    # Without --resume nothing is touched; with other settings neither.
    assert run([*call, "--steps", "20"]) == 2
    assert run([*call, "--resume", "--unit", "who"]) == 2
    short = [a if a != "400" else "4" for a in call]
    assert run(short) == 2
    assert run([*short, "--resume"]) == 2
    assert logged(begun) == spent
    state = json.loads((begun.parent / "state.json").read_text())
    assert state["spent"] <= spent
    # The rest of 2,000 steps would take long: pretend that most were begun.
    pretend(begun, 1990)
    assert run([*call, "--resume"]) == 0
    report = report_of(output)
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, SampledGaussian)
    assert event.steps == 2000
    assert int(str(report.parameters["updates"])) == state["step"] + 10
    assert not begun.parent.exists()


def test_examples_without_a_gradient_count_as_zero_and_are_reported(
    start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = CausalLanguage.losses

    def spoiled(task: CausalLanguage, network: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return honest(task, network, batch) / (batch["input_ids"].shape[1] != 9)  # the longest examples

    monkeypatch.setattr(CausalLanguage, "losses", spoiled)
    every = ("--batch-size", "60")  # so that none is left out of the last epoch by chance
    assert retrain("dp-sgd", start, data, tmp_path / "a", "--epsilon", "3", "--micro-examples", "4", *every) == 0
    assert "no finite gradient" not in " ".join(capsys.readouterr().out.split()), "how many there were is private"
    again = ("--epsilon", "3", "--micro-examples", "4", *every, "--show-unprotected")
    assert retrain("dp-sgd", start, data, tmp_path / "c", *again) == 0
    private = json.loads((tmp_path / "c.private-history.json").read_text())
    assert "no finite gradient and counted as zero" in private["notes"][0]
    assert private["history"][-1]["zeroed_fraction"] > 0
    assert retrain("clipped", start, data, tmp_path / "b", "--micro-examples", "4") == 3
    assert "not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ((), 2, "--epsilon or --noise-multiplier"),
        (("--epsilon", "1", "--noise-multiplier", "1"), 2, "one of them"),
        (("--epsilon", "-1"), 2, "--epsilon is -1"),
        (("--epsilon", "1", "--delta", "1"), 2, "--delta is 1"),
        (("--epsilon", "1", "--batch-size", "61"), 2, "exceeds the data"),
        (("--epsilon", "1", "--batch-size", "0"), 2, "--batch-size is 0"),
        (("--epsilon", "1", "--clip-norm", "0"), 2, "--clip-norm is 0"),
        (("--epsilon", "1", "--learning-rate", "0"), 2, "--learning-rate is 0"),
        (("--epsilon", "1", "--momentum", "0.9"), 2, "--momentum"),
        (("--epsilon", "1", "--train", "nothing*"), 2, "--train nothing*"),
        (("--epsilon", "1", "--steps", "5"), 2, "--steps and --epochs"),
        (("--epsilon", "1", "--max-length", "4", "--long", "refuse"), 3, "line"),
        (("--epsilon", "1", "--held-out", "none.jsonl"), 3, "none.jsonl"),
        (("--epsilon", "1", "--task", "text-classification"), 3, "label"),
        (("--epsilon", "1", "--device", "tpu"), 2, "tpu"),
        (("--epsilon", "1", "--resume"), 2, "no run to resume"),
        (("--epsilon", "1", "--labels", "a,b"), 2, "--labels does not apply"),
        (("--epsilon", "1", "--resize", "4", "4"), 2, "--resize does not apply"),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(
    more: tuple[str, ...], code: int, words: str, start: Path, data: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = sorted(p.name for p in tmp_path.iterdir())
    assert retrain("dp-sgd", start, data, tmp_path / "a", *more) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_an_output_that_exists_is_left_alone(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    assert retrain("dp-sgd", start, data, tmp_path / "a", "--epsilon", "1") == 2
    assert "exists" in capsys.readouterr().err
    assert not list((tmp_path / "a").iterdir())
    assert not (tmp_path / "a.run").exists()


def test_an_empty_data_set(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    assert retrain("dp-sgd", start, tmp_path / "empty.jsonl", tmp_path / "a", "--epsilon", "1") == 3
    assert "no records" in capsys.readouterr().err


def test_the_example_compares_budgets(trained: Path, data: Path, tmp_path: Path, root: Path, forked: Forked) -> None:
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text("".join(json.dumps({"text": f"the {a} sat on {b}"}) + "\n" for a in WORDS[:6] for b in WORDS))
    command = ["bash", str(root / "examples" / "compare-budgets.sh"), str(trained), str(data)]
    more = [str(held_out), str(tmp_path / "out"), "--epochs", "1", "--batch-size", "20", "--device", "cpu"]
    environment = {**os.environ, "PRIVCTL": forked.shell(), "BUDGETS": "2"}
    done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["plain", "epsilon-2"]
    assert all("held-out perplexity" in line and "AUC" in line for line in lines)
