"""``privctl retrain ferret``: every release end to end, replay, resume, mistakes."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from privctl.accounting.ledger import epsilon_bound
from privctl.cli import run
from privctl.domain.events import Ledger, RandomizedResponse, SampledGaussian, SignBits
from privctl.domain.guarantee import AssumptionState, Notion, RiskMeasure, Status
from privctl.domain.report import PrivacyReport
from privctl.reports.files import read_report
from privctl.train.directional import Derivatives
from privctl.train.methods.ferret import run as ferret_run
from privctl.train.methods.ferret.stream import read_stream
from privctl.train.settings.choices import DerivativeMethod
from tests.cli.short_runs import verified_after
from tests.few import few
from tests.models.tasks.small import same_records, words
from tests.train.state.release_logs import begun as logged
from verify.files.published_updates import check_updates

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


@pytest.fixture
def start(start_of_two_layers: Path) -> Path:
    """Groups and what is trained are counted over two layers."""
    return start_of_two_layers


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path, drawn = tmp_path / "train.jsonl", random.Random(0)
    lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9)))} for _ in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ferret(model: Path, data: Path, output: Path, *more: str) -> int:
    call = ["retrain", "ferret", str(model), "--data", str(data), "-o", str(output), "--batch-size", "12"]
    return run([*call, "--micro-tokens", "160", "--device", "cpu", "-q", *more])


def stream_of(output: Path) -> Path:
    return output.with_name(output.name + ".updates.safetensors")


def replay(model: Path, output: Path, again: Path, *more: str) -> int:
    call = ["retrain", "ferret", str(model), "--replay", str(stream_of(output)), "-o", str(again)]
    return run([*call, "--device", "cpu", "-q", *more])


def report_of(output: Path) -> PrivacyReport:
    return read_report(output.with_name(output.name + ".report.json"))


def digests(output: Path) -> dict[str, str]:
    return {tensor.name: tensor.digest for file in report_of(output).outputs for tensor in file.tensors}


def test_as_published_it_says_what_nats_are_and_are_not(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        ferret(start, data, tmp_path / "a", "--epsilon", "0.5", "--epochs", "10", "--held-out", str(same_records(data)))
        == 0
    )
    report, stdout = report_of(tmp_path / "a"), capsys.readouterr().out
    average, *refuted = report.guarantees
    assert isinstance(report.mechanism, SignBits)
    assert (average.notion, average.status) == (Notion.MUTUAL_INFORMATION, Status.CONDITIONAL)
    assert average.epsilon == pytest.approx(0.5)
    # docs/papers.md#what-nats-imply
    assert {risk.measure: risk.bound for risk in average.risks} == {
        RiskMeasure.ADVANTAGE: pytest.approx(0.9036225083),
        RiskMeasure.AUC: pytest.approx(0.9953556895),
    }
    assert [each.status for each in refuted] == [Status.REFUTED] * 2
    assert all("delta below 0.5" in each.note for each in refuted)
    assert "nats of mutual information, on average" in stdout
    assert "refuted" in stdout.lower()
    assert any("no (epsilon, delta) guarantee" in warning for warning in report.warnings)
    assert {a.name: a.state for a in average.assumptions}["public masks"] is AssumptionState.ENFORCED
    facts = report.parameters
    assert (facts["number_of_groups"], facts["steps"], facts["silent"]) == (28, 50, "coast")
    assert len(str(facts["public_seed"])) == 32
    fired = next(e for e in report.evidence if "group fired" in e.quantity)
    assert fired.estimate == pytest.approx(int(str(facts["fired"])) / (28 * 50))
    assert fired.details["p-value of the binomial"] > 1e-6
    nats = next(e for e in report.evidence if e.quantity.startswith("nats published"))
    assert nats.estimate == pytest.approx(int(str(facts["fired"])) * 0.2 * 0.69314718)
    assert "held-out perplexity" in {e.quantity for e in report.evidence}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "a").config.n_layer == 2
    assert run(["inspect", str(tmp_path / "a"), "-q"]) == 0
    assert not (tmp_path / "a.run").exists()


@pytest.mark.forged("one report is a lie that only the stream contradicts")
@pytest.mark.parametrize(
    ("more", "kind"),
    [
        pytest.param(("--release", "gaussian", "--groups", "4"), SampledGaussian, marks=pytest.mark.slow),
        pytest.param(
            ("--release", "gaussian", "--publish", "value", "--silent", "hold"), SampledGaussian, marks=pytest.mark.slow
        ),
        (("--release", "gaussian", "--directions", "3", "--optimizer", "sgd"), SampledGaussian),
        pytest.param(
            ("--release", "randomized-response", "--groups", "eighth", "--optimizer", "sgd"),
            RandomizedResponse,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sound_releases_meet_their_budget_and_replay(
    more: tuple[str, ...], kind: type, start: Path, data: Path, tmp_path: Path
) -> None:
    asked = ("--epsilon", "3", "--epochs", "6", "--batch-size", "25")  # 15 steps, which are no whole number of passes
    assert ferret(start, data, tmp_path / "a", *asked, *more) == 0
    report = report_of(tmp_path / "a")
    (guarantee,) = report.guarantees
    assert isinstance(report.mechanism, Ledger)
    assert {type(event) for event in report.mechanism.events} == {kind}
    assert sum(event.steps for event in report.mechanism.events) == report.parameters["fired_steps"]
    cost = 0.0 if guarantee.arithmetic is None else guarantee.arithmetic.epsilon
    ideal = epsilon_bound(report.mechanism, guarantee.delta)
    assert guarantee.epsilon is not None
    assert ideal + cost <= guarantee.epsilon <= ideal * (1 + 1e-5) + cost
    assert guarantee.epsilon is not None
    assert 2.99 < guarantee.epsilon <= 3
    assert [a.name for a in guarantee.assumptions if a.state is AssumptionState.ASSERTED] == ["vocabulary"]
    assert "operating system" in str(report.parameters["noise_source"])
    # And the same weights come back from the stream alone.
    assert replay(start, tmp_path / "a", tmp_path / "b") == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert not report_of(tmp_path / "b").guarantees
    stream = read_stream(stream_of(tmp_path / "a"))
    assert len(stream.amounts) == report.parameters["fired"]
    assert stream.recipe.epoch_rate == pytest.approx(25 / 60), "epochs are counted as asked for, and not by passes"
    assert stream.bits == ("value" not in more)
    assert stream_of(tmp_path / "a").stat().st_size < 2000
    if "--directions" not in more:
        return
    # The same coins and the same cost, of three times as many groups: only the stream tells.
    facts = json.loads((tmp_path / "a.report.json").read_text())["parameters"]
    thrice = {key: [each for each in facts[key] for _ in range(3)] for key in ("fired_by_group", "group_sizes")}
    thrice["fired_by_group"] = [each // 3 for each in thrice["fired_by_group"]]
    lie = {**thrice, "directions": 1, "number_of_groups": 3 * facts["number_of_groups"]}
    assert verified_after(tmp_path / "a.report.json", lambda report: report["parameters"].update(lie)) == 1
    forged = read_report(tmp_path / "forged.report.json")
    reasons = [v.reason for v in check_updates(tmp_path / "forged.report.json", forged, ())]
    assert reasons == ["directions is 1, but the stream of updates has 3"]
    assert not list(check_updates(tmp_path / "a.report.json", report, ()))
    again = report_of(tmp_path / "b")
    assert not list(check_updates(tmp_path / "b.report.json", again, ()))
    less = replace(again, parameters={k: v for k, v in again.parameters.items() if k != "directions"})
    assert [v.reason for v in check_updates(tmp_path / "b.report.json", less, ())] == reasons


@pytest.mark.forged("each is a lie about how much was published")
def test_directions_are_told_and_checked(start: Path, data: Path, tmp_path: Path) -> None:
    """Numbers beyond the groups' directions, or fewer than all of them at fire probability 1, do not pass."""
    asked = ("--release", "gaussian", "--noise-multiplier", "2", "--epochs", "1", "--directions", "2")
    assert ferret(start, data, tmp_path / "a", *asked) == 2, "AdamW would keep moments for each direction"
    assert ferret(start, data, tmp_path / "a", *asked, "--optimizer", "sgd") == 0
    report = report_of(tmp_path / "a")
    facts: dict[str, Any] = dict(report.parameters)
    assert (facts["directions"], facts["number_of_groups"], facts["fired"]) == (2, 28, 2 * 28 * 5)
    assert facts["fired_by_group"] == [10] * 28
    assert len(facts["group_sizes"]) == 28
    genuine = tmp_path / "a.report.json"
    assert verified_after(genuine, lambda report: None) == 0
    for lie in ({"directions": 1}, {"directions": 3}, {"number_of_groups": 14}):
        assert verified_after(genuine, lambda report, lie=lie: report["parameters"].update(lie)) == 1  # type: ignore[misc]


def test_dithered_signs_have_both_kinds_of_guarantee(start: Path, data: Path, tmp_path: Path) -> None:
    budget = ["--epsilon", "0.6", "--epochs", "20", "--dither", "2", "--public-seed", "0a1b"]
    assert ferret(start, data, tmp_path / "a", *budget) == 0
    tight, by_renyi, average = report_of(tmp_path / "a").guarantees
    assert tight.epsilon is not None
    assert by_renyi.epsilon is not None
    assert 0 < tight.epsilon <= by_renyi.epsilon
    assert (average.notion, average.epsilon) == (Notion.MUTUAL_INFORMATION, pytest.approx(0.6))
    assert "dithered" in tight.name


@pytest.mark.parametrize("turned", few([False, True], 1))
def test_signs_of_differences_are_for_the_owner(
    turned: bool, start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Derivatives.batch

    def wrong(self: Derivatives, *asked: Any) -> torch.Tensor:
        found = right(self, *asked)
        return -found if self.method is DerivativeMethod.DIFFERENCE else found

    if turned:
        monkeypatch.setattr(Derivatives, "batch", wrong)
    budget = ("--fire-probability", "0.1", "--epochs", "3")
    assert ferret(start, data, tmp_path / "a", *budget, "--derivatives", "difference", "--show-unprotected") == 0
    report = report_of(tmp_path / "a")
    assert not any("signs of differences" in item.quantity for item in report.evidence)
    assert not any("lead astray" in warning for warning in report.warnings)
    notes = json.loads((tmp_path / "a.private-history.json").read_text())["notes"]
    (above,) = (each for each in notes if "above the noise of rounding" in each)
    right_signs, signs = (int(word) for word in above.split() if word.isdigit())
    assert 0 < signs <= 12
    assert right_signs == (0 if turned else signs)
    assert any("lead astray" in each for each in notes) is turned
    if turned:
        return
    # Of exact derivatives there is nothing to say.
    assert ferret(start, data, tmp_path / "b", *budget, "--derivatives", "partial", "--show-unprotected") == 0
    assert json.loads((tmp_path / "b.private-history.json").read_text())["notes"] == []


def test_a_replay_refuses_another_model_and_private_flags(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = ("--release", "gaussian", "--noise-multiplier", "1", "--epochs", "2", "--train", "*c_attn*")
    assert ferret(start, data, tmp_path / "a", *budget) == 0
    assert ferret(tmp_path / "a", data, tmp_path / "b", *budget) == 0
    assert replay(tmp_path / "a", tmp_path / "b", tmp_path / "c") == 0
    assert digests(tmp_path / "b") == digests(tmp_path / "c")
    assert sum(digests(tmp_path / "a")[name] != digest for name, digest in digests(tmp_path / "c").items()) <= 4
    assert replay(tmp_path / "b", tmp_path / "b", tmp_path / "d") == 3
    assert "is not the model that" in capsys.readouterr().err
    assert replay(tmp_path / "a", tmp_path / "b", tmp_path / "d", "--learning-rate", "1") == 2
    assert "--learning-rate does not apply to --replay" in capsys.readouterr().err
    assert replay(tmp_path / "a", tmp_path / "b", tmp_path / "c") == 2
    assert "exists" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_adapters_replay_too(start: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    budget = ("--release", "gaussian", "--epsilon", "3", "--epochs", "3", "--lora-rank", "2")
    assert ferret(start, data, tmp_path / "a", *budget) == 0
    assert report_of(tmp_path / "a").parameters["lora_rank"] == 2
    assert replay(start, tmp_path / "a", tmp_path / "b") == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def interrupting(begun: Path, after: int) -> threading.Thread:
    """Sends this process a Ctrl-C when more than ``after`` steps have begun."""

    def watch() -> None:
        deadline = time.monotonic() + 60
        while not (logged(begun) > after) and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


# tests/train/methods/ferret/test_trainer.py resumes one with noise, tests/cli/test_retrain_summary.py a whole command.
@pytest.mark.parametrize("release", ["published", pytest.param("gaussian", marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on(
    release: str, start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = ["--fire-probability", "0.05", "--epochs", "10", "--public-seed", "0a1b"]
    budget += [] if release == "published" else ["--release", release, "--noise-multiplier", "2"]
    cut, whole, state = tmp_path / "cut", tmp_path / "whole", tmp_path / "cut.run"
    watcher = interrupting(state / "begun", 6)
    assert ferret(start, data, cut, *budget) == 130
    watcher.join()
    assert "--resume" in capsys.readouterr().err
    reached = json.loads((state / "state.json").read_text())
    assert reached["step"] == reached["spent"] < 50
    assert ferret(start, data, cut, *budget, "--resume", "--groups", "2") == 2
    assert ferret(start, data, cut, *budget, "--resume") == 0
    assert report_of(cut).parameters["lost_steps"] == []
    assert {a.name: a.state for a in report_of(cut).guarantees[0].assumptions}["public masks"] is (
        AssumptionState.ASSERTED
    )
    assert replay(start, cut, tmp_path / "again") == 0
    assert digests(cut) == digests(tmp_path / "again")
    if release == "published":
        assert ferret(start, data, whole, *budget) == 0
        assert digests(cut) == digests(whole)


def test_a_fresh_seed_survives_the_interruption(start: Path, data: Path, tmp_path: Path) -> None:
    """Nothing may be drawn anew that was known before: masks are part of what the noise was found for."""
    (tmp_path / "a.run").mkdir()
    (tmp_path / "a.run" / "public-seed").write_text("ab" * 16)
    (tmp_path / "a.run" / "settings.json").write_text("{}")
    assert ferret(start, data, tmp_path / "a", "--epsilon", "0.5", "--resume") == 2  # other settings, of course
    (tmp_path / "a.run" / "public-seed").write_text("no seed")
    assert ferret(start, data, tmp_path / "a", "--epsilon", "0.5", "--resume") == 3


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ((), 2, "--epsilon or --fire-probability"),
        (("--epsilon", "500"), 2, "above the ceiling of 58.2"),
        (("--epsilon", "0.5", "--groups", "99"), 2, "from 1 to 28"),
        (("--epsilon", "0.5", "--epochs", "0.5"), 2, "--epochs is 0.5"),
        (("--epsilon", "0.5", "--steps", "7"), 2, "multiple"),
        (("--epsilon", "0.5", "--public-seed", "xyz"), 2, "hexadecimal"),
        (("--epsilon", "1", "--release", "gaussian", "--dither", "1"), 2, "--dither does not apply"),
        (("--epsilon", "1", "--release", "gaussian", "--clip-norm", "0"), 2, "--clip-norm is 0"),
        (("--epsilon", "0.5", "--resume"), 2, "no run to resume"),
        (("--epsilon", "0.5", "--public-seed", ""), 2, "hexadecimal"),
        (("--epsilon", "0.5", "--bf16", "--derivatives", "difference"), 2, "remove one"),
        (("--epsilon", "0.5", "--groups", "0"), 2, "from 1 to 28"),
        (("--epsilon", "0.5", "--seed", "-1"), 2, "--seed is -1"),
        (("--epsilon", "0.5", "--from-scratch", "--seed", str(2**63)), 2, "below 2^63"),
        (("--epsilon", "0.5", "--learning-rate", "1e39"), 2, "--learning-rate is 1e+39"),
        (("--epsilon", "1", "--release", "gaussian", "--delta", "1"), 2, "--delta is 1"),
        (("--epsilon", "1e7", "--release", "gaussian"), 2, "ask for a smaller epsilon"),
        (("--epsilon", "0.5", "--batch-size", "61"), 2, "exceeds the data"),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(
    more: tuple[str, ...], code: int, message: str, start: Path, data: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = sorted(p.name for p in tmp_path.iterdir())
    assert ferret(start, data, tmp_path / "a", *more) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_weights_that_are_no_numbers_are_refused_at_once(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ferret(start, data, tmp_path / "a", "--fire-probability", "0.1", "--epochs", "1") == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    with torch.no_grad():
        model.transformer.wte.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "spoilt")
    words().tokenizer.save_pretrained(tmp_path / "spoilt")
    capsys.readouterr()
    assert ferret(tmp_path / "spoilt", data, tmp_path / "b", "--fire-probability", "0.1") == 3
    assert "'transformer.wte.weight' holds NaN" in capsys.readouterr().err
    assert not (tmp_path / "b.run").exists()


def test_a_run_in_which_nothing_fires_says_so(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["retrain", "ferret", str(start), "--data", str(data), "-o", str(tmp_path / "a"), "--batch-size", "12"]
    assert run([*call, "--device", "cpu", "--fire-probability", "1e-12", "--epochs", "1"]) == 0
    assert "the model stays as it is" in capsys.readouterr().err


def test_without_data_or_stream_there_is_nothing_to_do(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["retrain", "ferret", str(start), "-o", str(tmp_path / "a")]) == 2
    assert "--replay" in capsys.readouterr().err


@pytest.mark.slow
def test_weights_that_were_replaced_meanwhile_are_not_named_as_the_start(
    start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same bytes are taken again by --resume; other ones are not what the run began with."""
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(start)).save_pretrained(tmp_path / "mine")
    words().tokenizer.save_pretrained(tmp_path / "mine")
    weights, stream = tmp_path / "mine" / "model.safetensors", ferret_run._stream
    kept = weights.read_bytes()

    def replacing(*args: Any) -> Any:
        weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        return stream(*args)

    call = (tmp_path / "mine", data, tmp_path / "out", "--epsilon", "4", "--epochs", "2")
    with monkeypatch.context() as patch:
        patch.setattr(ferret_run, "_stream", replacing)
        assert ferret(*call) == 3
    assert "model.safetensors was changed since it was opened" in capsys.readouterr().err
    assert ferret(*call, "--resume") == 2
    assert "was begun from other weights than MODEL now holds" in capsys.readouterr().err
    weights.write_bytes(kept)
    assert ferret(*call, "--resume") == 0
