"""``privctl retrain dpquant``: texts and images, what its report says, resume, secrets, mistakes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.published_measurements import aggregate_ledger, claimed_ledger
from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.guarantee import AssumptionState, Status
from privctl.train.methods.dpquant import run as dpquant
from tests.cli.dpquant_runs import WORDS, alike, call, records, report_of
from tests.cli.short_runs import half_the_noise
from tests.data.test_changed_while_read import changing
from tests.forked import Forked
from tests.models.tasks.small import architecture, same_records
from tests.train.state.release_logs import begun as logged
from tests.train.state.release_logs import pretend

PRIVATE = ("--sensitivity", "private")


@pytest.fixture
def start(start_of_two_layers: Path) -> Path:
    """Layers are chosen from among others."""
    return start_of_two_layers


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return records(tmp_path / "train.jsonl")


def test_steps_and_measurements_meet_one_budget(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "private"
    asked = (*PRIVATE, "--epsilon", "3", "--epochs", "3", "--held-out", str(same_records(data)))
    assert run(call(start, data, output, *asked)) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    report = report_of(output)
    assert isinstance(report.mechanism, Ledger)
    training, measured = report.mechanism.events
    assert isinstance(training, SampledGaussian)
    assert isinstance(measured, SampledGaussian)
    assert (training.sample_rate, training.steps) == (0.2, 15)
    assert (measured.sample_rate, measured.steps) == (0.2, 4)  # epochs 1 and 3, twice each
    guarantee, claimed = report.guarantees
    assert guarantee.epsilon is not None
    assert 2.99 < guarantee.epsilon <= 3
    assert guarantee.arithmetic is not None
    ideal = epsilon_bound(report.mechanism, guarantee.delta)
    assert ideal + guarantee.arithmetic.epsilon <= guarantee.epsilon <= ideal + 1e-5
    without = epsilon_bound(Ledger(events=(training,)), guarantee.delta)
    assert report.parameters["epsilon_without_measurements"] == without < guarantee.epsilon
    assert {a.name for a in guarantee.assumptions} >= {"public rounding", "rounding by example", "measurements"}
    assert guarantee.status is Status.CONDITIONAL  # nobody here saw how the tokenizer was made
    # And what the paper would have said: for two measurements, or four.
    assert claimed.status is Status.CLAIMED
    assert claimed.epsilon == epsilon_bound(claimed_ledger(training, 60, 2), guarantee.delta)
    assert claimed.follows == epsilon_bound(aggregate_ledger(training, 60, 4), guarantee.delta)
    assert claimed.epsilon is not None
    assert claimed.follows is not None
    assert claimed.epsilon < claimed.follows
    assert "(claimed)" in stdout
    assert "noise multiplier 0.5 at rate 1 / 60" in stdout
    assert "share of epsilon that measurements take" in stdout
    history = report.parameters["layer_schedule"]
    names = report.parameters["layer_names"]
    assert len(names) == 9
    assert [len(entry["quantized"]) for entry in history] == [7, 7, 7]
    assert history[0]["scores"] == history[1]["scores"] != history[2]["scores"]
    speed = next(e for e in report.evidence if "hardware" in e.quantity)
    share = float(np.mean(report.parameters["low_precision_share"]))
    assert speed.estimate == pytest.approx(1 / (1 - share + share / 4))
    assert "not a measurement" in speed.method
    network = AutoModelForCausalLM.from_pretrained(output)
    tokens = AutoTokenizer.from_pretrained(output)("the cat", return_tensors="pt")
    assert torch.isfinite(network(**tokens).logits).all()
    assert run(["inspect", str(output), "-q"]) == 0
    assert not output.with_name("private.run").exists()


@pytest.mark.slow
def test_a_report_is_verified_and_forgotten_measurements_are_noticed(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "private"
    assert run(call(start, data, output, *PRIVATE, "--epsilon", "3", "--batch-size", "25", "--epochs", "5")) == 0
    asked = report_of(output).parameters
    assert [each["epoch"] for each in asked["layer_schedule"]] == [0, 1, 2, 3, 4], "12 steps of 25 of 60 records"
    assert asked["measurements_begun"] == 6, "every other epoch, twice each"
    report_path = output.with_name("private.report.json")
    assert run(["verify", str(report_path)]) == 0, capsys.readouterr().out
    honest = json.loads(report_path.read_text())
    earlier = json.loads(report_path.read_text())
    assert earlier["parameters"].pop("sensitivity") == "private"
    report_path.write_text(json.dumps(earlier))
    assert run(["verify", str(report_path)]) == 0, "a report of a version that had no other way"
    for edit in (
        lambda report: report["mechanism"]["events"].pop(),
        lambda report: report["mechanism"]["events"][1].update(steps=1),
        half_the_noise,
    ):
        edited = json.loads(json.dumps(honest))
        edit(edited)
        report_path.write_text(json.dumps(edited))
        assert run(["verify", str(report_path)]) == 1


@pytest.mark.slow
def test_layers_measured_on_public_records_cost_no_epsilon(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, public = tmp_path / "private", tmp_path / "public.jsonl"
    public.write_text("".join(json.dumps({"text": f"the old {word} sat on a mat"}) + "\n" for word in WORDS))
    asked = ("--epsilon", "3", "--epochs", "3", "--beta", "1e9", "--measure-on", str(public))
    assert run(call(start, data, output, *asked)) == 0, capsys.readouterr().err
    report = report_of(output)
    assert isinstance(report.mechanism, Ledger)
    (training,) = report.mechanism.events
    assert isinstance(training, SampledGaussian)
    (guarantee,) = report.guarantees
    assert training.noise_multiplier == pytest.approx(
        noise_multiplier_for(3, guarantee.delta, alike(training)), rel=1e-3
    )
    premise = next(a for a in guarantee.assumptions if a.name == "public measurements")
    assert premise.state is AssumptionState.ASSERTED
    assert report.parameters["measured_public_records"] == len(WORDS)
    # With so large a beta, the layers that hurt most are the two that are left alone.
    history, names = report.parameters["layer_schedule"], report.parameters["layer_names"]
    assert history[0]["scores"] == history[1]["scores"] != history[2]["scores"]
    for entry in history:
        hurt = sorted(names, key=dict(zip(names, entry["scores"], strict=True)).__getitem__)
        assert set(entry["quantized"]) == set(hurt[:7])


def test_public_records_that_do_not_fit_are_refused(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = same_records(data)
    for more, message in {
        ("--measure-on", str(data)): "is the training data; give records that are public",
        ("--measure-on", str(public), "--layers", "random"): "does not apply to --layers random",
        ("--measure-on", str(public), "--measure-noise", "1"): "--measure-noise does not apply",
        ("--measure-on", str(public), *PRIVATE): "--measure-on does not apply to --sensitivity private",
        # The first of the training records is the last of the public ones.
        ("--measure-on", str(public)): f"record 60 of --measure-on {public} is in --data {data} too",
    }.items():
        assert run(call(start, data, tmp_path / "no", "--epsilon", "3", *more)) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    asked = call(start, data, tmp_path / "no", "--epsilon", "3", "--measure-on", str(public), "--dry-run")
    assert run(asked) == 2
    assert "record 60 of --measure-on" in " ".join(capsys.readouterr().err.split())


def test_public_records_that_change_while_they_are_read_are_not_named(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    public = tmp_path / "public.jsonl"
    public.write_text(json.dumps({"text": "the old cat sat on a mat"}) + "\n")
    monkeypatch.setattr(dpquant, "other_task", changing(public, dpquant.other_task))
    asked = call(start, data, tmp_path / "no", "--epsilon", "3", "--epochs", "1", "--measure-on", str(public))
    assert run(asked) == ExitCode.BAD_INPUT
    assert f"{public} was changed while it was read" in " ".join(capsys.readouterr().err.split())


def layers_of(output: Path, start: Path, data: Path, *more: str) -> list[list[str]]:
    """The layers that each epoch of a run with a public seed quantized; the run measured nothing."""
    seed = ("--noise-multiplier", "1", "--public-seed", "00ff", "--batch-size", "30")
    assert run(call(start, data, output, *seed, *more)) == 0
    report = report_of(output)
    (guarantee,) = report.guarantees
    assert isinstance(report.mechanism, Ledger)
    assert len(report.mechanism.events) == 1
    assert any(a.name == "public rounding" and a.state == "asserted" for a in guarantee.assumptions)
    return [each["quantized"] for each in report.parameters["layer_schedule"]]


@pytest.mark.slow
def test_baselines_measure_nothing_and_a_public_seed_repeats_the_layers(
    start: Path, data: Path, tmp_path: Path
) -> None:
    first = layers_of(tmp_path / "random", start, data, "--layers", "random")
    assert first == layers_of(tmp_path / "again", start, data, "--layers", "random", "--format", "fp8")
    assert first[0] != first[1]


@pytest.mark.slow
def test_layers_that_are_named_are_those_of_every_epoch(start: Path, data: Path, tmp_path: Path) -> None:
    named = ("--layers", "static", "--static-layers", "*mlp*", "--full-precision", "lm_head")
    mlp = [f"transformer.h.{i}.mlp.{part}" for i in (0, 1) for part in ("c_fc", "c_proj")]
    assert layers_of(tmp_path / "named", start, data, *named) == [mlp, mlp]


@pytest.mark.slow
def test_other_baselines_and_formats(start: Path, data: Path, tmp_path: Path) -> None:
    """How layers are chosen, and each format, have quick tests of their own."""
    static = ("--layers", "static", "--compute-target", "0.5", "--format", "int4")
    chosen = layers_of(tmp_path / "static", start, data, *static)
    assert chosen[0] == chosen[1]
    assert layers_of(tmp_path / "uniform", start, data, "--layers", "random", "--format", "uniform4")[0]
    most = ("--layers", "all", "--full-precision", "lm_head", "--luq-levels", "5")
    quantized = layers_of(tmp_path / "all", start, data, *most)[0]
    assert len(quantized) == 8
    assert "lm_head" not in quantized
    assert layers_of(tmp_path / "none", start, data, "--layers", "none") == [[], []]


@pytest.mark.slow
def test_images_adam_and_lower_precision(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 40)
    images = (draw.integers(0, 100, (40, 16, 16, 3)) + 150 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    net = architecture(tmp_path / "resnet", "resnet")
    more = ("--epsilon", "8", "--task", "image-classification", "--labels", "0,1", "--optimizer", "adam", "--bf16")
    more = (*more, "--norm", "frozen")
    more = (*more, "--held-out", str(same_records(tmp_path / "images.npz")))
    assert run(call(net, tmp_path / "images.npz", tmp_path / "a", *more)) == 0
    report = report_of(tmp_path / "a")
    asserted = {a.name for a in report.guarantees[0].assumptions if a.state is AssumptionState.ASSERTED}
    assert asserted == {"labels", "rounding of sums"}, "few bits differ by more than the margin for rounding"
    assert all(cost > 0 for cost in report.parameters["multiply_adds"])


@pytest.mark.slow
def test_checkpointing_and_units(start: Path, data: Path, tmp_path: Path) -> None:
    usual = ("--noise-multiplier", "1", "--layers", "random", "--batch-size", "10", "--epochs", "1")
    assert run(call(start, data, tmp_path / "a", *usual, "--checkpointing")) == 0
    lines = [json.loads(line) | {"who": str(i % 20)} for i, line in enumerate(data.open())]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(call(start, data, tmp_path / "b", *usual, "--unit", "who")) == 0
    assert report_of(tmp_path / "b").parameters["examples"] == 20


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_layers_and_its_ledger(
    start: Path, data: Path, tmp_path: Path, forked: Forked
) -> None:
    output = tmp_path / "private"
    more = (*PRIVATE, "--epochs", "60", "--noise-multiplier", "4", "--measure-every", "1")
    more = (*more, "--measure-repetitions", "1")
    arguments = call(start, data, output, *more)
    process = forked.start(arguments)
    state, deadline = tmp_path / "private.run", time.monotonic() + 120
    while not logged(state / "begun") > 12:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    seed, counted = (state / "public-seed").read_text(), logged(state / "measured")
    assert counted >= 2
    assert run([*arguments, "--resume", "--beta", "3"]) == 2
    assert run([*arguments, "--resume", "--measure-clip", "1"]) == 2
    # The rest of 300 steps would take long: pretend that most were begun, and one measurement more.
    pretend(state / "begun", 295)
    pretend(state / "measured", counted + 1)
    assert run([*arguments, "--resume"]) == 0
    report = report_of(output)
    assert isinstance(report.mechanism, Ledger)
    training, measured = report.mechanism.events
    assert training.steps == 300
    assert measured.steps == report.parameters["measurements_begun"] > counted
    assert report.parameters["public_seed"] == seed
    epochs = [each["epoch"] for each in report.parameters["layer_schedule"]]
    assert epochs == list(range(len(epochs)))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--quantized-fraction", "0.5", "--compute-target", "0.5"), "both say how much"),
        (("--quantized-fraction", "1.5"), "--quantized-fraction is 1.5"),
        (("--compute-target", "0"), "--compute-target is 0"),
        (("--quantized-fraction", "0.95"), "give --layers all"),
        (("--layers", "all", "--quantized-fraction", "0.5"), "does not apply to --layers all"),
        (("--static-layers", "*mlp*"), "applies to --layers static only"),
        (("--layers", "static", "--static-layers", "*mlp*", "--compute-target", "0.5"), "both say how much"),
        (("--layers", "static", "--static-layers", "nothing"), "matches no layer"),
        (("--full-precision", "nothing"), "matches no layer"),
        (("--format", "fp8", "--luq-levels", "5"), "--luq-levels does not apply"),
        (("--luq-levels", "0"), "--luq-levels is 0; it must be at least 1 and at most 64"),
        (("--beta", "-1"), "--beta is -1"),
        (("--smoothing", "1"), "--smoothing is 1"),
        (("--public-seed", "xyz"), "must be hexadecimal"),
        ((*PRIVATE, "--measure-noise", "0.2", "--measure-rate", "1"), "by themselves"),
        (("--measure-noise", "0.2"), "--measure-noise does not apply to --sensitivity synthetic, which needs no noise"),
        (("--layers", "random", "--sensitivity", "synthetic"), "which measures nothing; remove it"),
        (("--sensitivity", "public"), "give them with --measure-on"),
        (("--noise-multiplier", "1"), "one of them"),
    ],
)
def test_a_mistake_is_refused_in_one_line_and_writes_nothing(
    more: tuple[str, ...], message: str, start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(call(start, data, tmp_path / "a", "--epsilon", "3", *more)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "a.run").exists()
