"""``--resume`` with another call: what is named is the option that was changed, or what may change does."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
import transformers

from privctl.cli import run
from privctl.domain.errors import FileSystemError, InputError, RunInterruptedError
from privctl.domain.guarantee import AssumptionState
from privctl.domain.progress import unseen
from privctl.reports.files import read_report
from privctl.train.methods import method_named
from privctl.train.preparation.prepare import prepare
from privctl.train.run import run_training
from privctl.train.runs import gradient_training
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from privctl.train.settings.session import Session
from privctl.train.state.fingerprint import difference, fingerprint_of
from privctl.train.state.resuming import require_steps_left
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.gradient_noise import CipherNoise
from privctl.train.steps.saved_state import SavedState
from tests.few import few
from tests.models.tasks.small import architecture, words

CALL = {"--noise-multiplier": "1", "--batch-size": "12", "--epochs": "2", "--micro-tokens": "160", "--device": "cpu"}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model to start from, data, and the state of a run that ended after its first step."""
    folder = tmp_path_factory.mktemp("interrupted")
    architecture(folder / "start", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(folder / "start")
    lines = [json.dumps({"text": f"the cat sat on the {('mat', 'dog')[i % 2]}", "who": str(i)}) for i in range(60)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "other.jsonl").write_text("\n".join(lines[:59]))
    begin(folder)
    return folder


def begin(folder: Path) -> None:
    """Leave the state of a run that ended after its first step."""
    with pytest.raises(RunInterruptedError):
        run_training(prepare(request_in(folder)), Session(progress=unseen, interrupts=nullcontext(lambda: True)))
    assert (folder / "out.run").is_dir()


def request_in(folder: Path) -> RetrainRequest:
    return RetrainRequest(
        method=method_named("dp-sgd"),
        model=ModelRequest(path=folder / "start"),
        data=DataRequest(train=folder / "train.jsonl"),
        budget=BudgetRequest(noise_multiplier=1.0),
        output=folder / "out",
        batch_size=12,
        epochs=2.0,
        micro_tokens=160,
        device="cpu",
    )


def resume(folder: Path, *more: str, data: str = "train.jsonl", **changed: str | None) -> int:
    options = {**CALL, **{f"--{name.replace('_', '-')}": value for name, value in changed.items()}}
    arguments = [part for name, value in options.items() if value is not None for part in (name, value)]
    call = [
        "retrain",
        "dp-sgd",
        str(folder / "start"),
        "--data",
        str(folder / data),
        "-o",
        str(folder / "out"),
        *arguments,
    ]
    return run([*call, "-q", "--resume", *more])


def test_a_state_that_was_changed_is_not_gone_on_with(interrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tensors,) = (interrupted / "out.run").glob("state-*.safetensors")
    kept = tensors.read_bytes()
    tensors.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert resume(interrupted) == 3
    assert "is not what was saved with the run's state" in capsys.readouterr().err
    tensors.write_bytes(kept)


@pytest.mark.parametrize(
    ("changed", "words"),
    few(
        [
            ({"noise_multiplier": None, "epsilon": "8"}, "without --epsilon, which is given now"),
            ({"noise_multiplier": "2"}, "with --noise-multiplier 1, not 2"),
            ({"batch_size": "15"}, "with --batch-size 12, not 15"),
            ({"epochs": "3"}, "with --epochs 2, not 3"),
            ({"epochs": None, "steps": "10"}, "with --epochs 2, which is not given now"),
            ({"delta": "1e-6"}, "without --delta, which is given now"),
            ({"lora_rank": "2"}, "without --lora-rank, which is given now"),
            ({"train": "*wte*"}, "without --train, which is given now"),
            ({"seed": "1"}, "with --seed 0, not 1"),
        ],
        0,
        1,
        4,
        6,
    ),
)
def test_the_option_that_was_changed_is_named(
    changed: dict[str, str | None], words: str, interrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "lora_rank" in changed:
        pytest.importorskip("peft")
    assert resume(interrupted, **changed) == 2  # type: ignore[arg-type]
    error = capsys.readouterr().err
    assert error == f"privctl: {interrupted / 'out.run'} was begun {words}; resume with the same settings\n"


def test_flags_and_data_are_named_too(interrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for call, message in (
        (lambda: resume(interrupted, "--bf16"), "without --bf16, which is given now"),
        (lambda: resume(interrupted, data="other.jsonl"), "with another file as --data"),
    ):
        assert call() == 2
        assert f"was begun {message}; resume with the same settings" in capsys.readouterr().err


def test_other_weights_are_not_what_the_run_began_with(
    interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report would name them as the beginning; runs of earlier versions do not say what theirs were."""
    shutil.copytree(interrupted / "start", tmp_path / "start")
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "start")
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "start")
    shutil.copy(interrupted / "train.jsonl", tmp_path / "train.jsonl")
    weights = tmp_path / "start" / "model.safetensors"
    kept = weights.read_bytes()

    begin(tmp_path)
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert resume(tmp_path) == 2
    assert "was begun from other weights than MODEL now holds; resume with the same" in capsys.readouterr().err
    settings = json.loads((tmp_path / "out.run" / "settings.json").read_text())
    assert difference({name: settings[name] for name in settings if name != "weights"}, settings) is None
    weights.write_bytes(kept)  # with another time of change
    assert resume(tmp_path) == 0


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "chat_template.jinja"])
def test_a_run_goes_on_with_the_files_beside_the_weights_that_it_began_with(
    name: str, interrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = interrupted / "start" / name
    kept = place.read_bytes() if place.exists() else None
    place.write_bytes(b"{{ messages }}" if kept is None else kept + b" ")
    assert resume(interrupted) == 2
    assert f"was begun with another {name} beside the weights; resume with the same" in capsys.readouterr().err
    if kept is None:
        place.unlink()
        return
    place.write_bytes(kept)
    settings = json.loads((interrupted / "out.run" / "settings.json").read_text())
    assert difference({key: settings[key] for key in settings if key != "beside"}, settings) is None


def test_a_tokenizer_that_was_changed_meanwhile_is_not_named_as_used(interrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(interrupted / "start", tmp_path / "start")
    shutil.copy(interrupted / "train.jsonl", tmp_path)
    tokenizer = tmp_path / "start" / "tokenizer.json"
    kept = tokenizer.read_bytes()
    with pytest.raises(InputError, match=r"the configuration or tokenizer of MODEL was changed since the run began"):
        run_training(
            prepare(request_in(tmp_path)),
            Session(progress=unseen, on_epoch=lambda _: tokenizer.write_bytes(kept + b" ")),
        )
    assert not (tmp_path / "out").exists()
    tokenizer.write_bytes(kept)
    assert resume(tmp_path) == 0


def test_data_that_were_changed_meanwhile_are_not_named_as_trained_on(interrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(interrupted / "start", tmp_path / "start")
    data = tmp_path / "train.jsonl"
    shutil.copy(interrupted / "train.jsonl", data)

    def change(_: object) -> None:
        data.write_text(data.read_text().replace("mat", "cat"))

    with pytest.raises(InputError, match=r"the data were changed since the run began, .* continue with --resume"):
        run_training(prepare(request_in(tmp_path)), Session(progress=unseen, on_epoch=change))
    assert not (tmp_path / "out").exists()
    shutil.copy(interrupted / "train.jsonl", data)
    assert resume(tmp_path) == 0


@pytest.mark.slow
def test_a_run_may_be_evaluated_on_other_examples_when_it_is_resumed(interrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(interrupted / "out.run", tmp_path / "copy.run")
    more = ("--held-out", str(interrupted / "other.jsonl"), "--micro-examples", "3", "-o", str(tmp_path / "copy"))
    assert resume(interrupted, *more) == 0
    report = read_report(tmp_path / "copy.report.json")
    assert any(item.quantity == "held-out loss, nats" for item in report.evidence)


def test_noise_of_the_device_is_secret_and_begins_where_the_run_stopped(
    interrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, with the processor as the device; the hook verifies the report."""
    ciphers: list[CipherNoise] = []

    def on_the_device(device: torch.device) -> CipherNoise:
        ciphers.append(CipherNoise(device))
        return ciphers[-1]

    monkeypatch.setattr(gradient_training, "noise_for", on_the_device)
    shutil.copytree(interrupted / "out.run", tmp_path / "copy.run")
    assert resume(interrupted, "-o", str(tmp_path / "copy")) == 0
    report = read_report(tmp_path / "copy.report.json")
    (secret,) = (a for a in report.guarantees[0].assumptions if a.name == "secret noise")
    assert (secret.state, ciphers[0].description in secret.statement) == (AssumptionState.ENFORCED, True)
    assert str(report.parameters["noise_source"]).startswith(
        "ChaCha20 keystream on cpu by tensor operations under a key"
    )
    (noise,) = ciphers
    with pytest.raises(ValueError, match="the next step is 10"):
        noise.release([torch.zeros(4)], 1.0, 1)


def test_a_finished_run_has_nothing_to_resume(interrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the settings of the run or with others: nothing is trained, and it is said how to train again."""
    folder = interrupted
    assert resume(folder) == 0
    written = (folder / "out.report.json").read_bytes()
    for more in ([], ["--seed", "3"], ["--force"]):
        capsys.readouterr()
        assert resume(folder, *more) == 2
        stderr = capsys.readouterr().err
        assert (
            f"{folder / 'out'} is finished, and out.report.json is its report, so there is no run to resume" in stderr
        )
        assert "give --force to train again" in stderr
    assert (folder / "out.report.json").read_bytes() == written
    shutil.rmtree(folder / "out")
    (folder / "out.report.json").unlink()
    begin(folder)


def test_held_out_examples_are_no_part_of_how_a_run_was_begun(interrupted: Path, tmp_path: Path) -> None:
    request = replace(request_in(interrupted), output=tmp_path / "out")
    others = replace(request, data=replace(request.data, held_out=interrupted / "other.jsonl"))
    assert fingerprint_of(prepare(others)) == fingerprint_of(prepare(request))


def test_a_run_that_is_killed_once_its_model_is_in_place_is_finished(
    interrupted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is not gone on with, which would release other weights; the next command removes it."""
    folder = interrupted
    kept: list[str] = []

    def killed(path: Path, **_: object) -> None:
        kept.extend(sorted(each.name for each in path.iterdir()))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("privctl.train.preparation.places.shutil", SimpleNamespace(rmtree=killed))
        assert resume(folder) == 130
    assert kept == ["released"], "what says that it is finished goes last"
    written = (folder / "out.report.json").read_bytes()
    (folder / "out.run/settings.json").write_text("{}")  # killed earlier, nothing else is gone yet
    capsys.readouterr()
    assert resume(folder) == 2
    assert f"{folder / 'out'} is finished, and out.report.json is its report" in capsys.readouterr().err
    assert not (folder / "out.run").exists()
    assert (folder / "out.report.json").read_bytes() == written
    shutil.rmtree(folder / "out")
    (folder / "out.report.json").unlink()
    begin(folder)


def test_the_help_says_what_may_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retrain", "dp-sgd", "--help-all"]) == 0
    sentence = "Only --held-out, --show-unprotected, --log, --device and what changes speed or memory may differ"
    assert sentence.replace(" ", "") in "".join(capsys.readouterr().out.split())


def test_what_follows_from_options_is_named_last_and_only_alone() -> None:
    before = {"sample_rate": 0.1, "noise_multiplier": 1.25, "batch_size": 12.0, "examples": 60}
    assert difference(before, before) is None
    assert difference(before, {**before, "noise_multiplier": 2.0, "batch_size": 24.0}) == "with --batch-size 12, not 24"
    asked = {"noise_multiplier": 1.25, "budget": {"epsilon": 8.0}}
    assert difference(asked, {"noise_multiplier": 2.0, "budget": {"epsilon": 4.0}}) == "with --epsilon 8, not 4"
    held = difference(before, {**before, "sample_rate": 0.2, "examples": 30})
    assert held == "with 60 records in --data, which now holds 30"
    assert difference(before, {**before, "noise_multiplier": 2.0}) == (
        "with the noise multiplier 1.25, which would now be 2"
    )
    assert difference({"method": "dp-sgd"}, {"method": "dpquant"}) == "as dp-sgd, not dpquant"
    own = {"method": "dpquant", "settings": {"clip": 0.01}}
    now = {"method": "dpquant", "settings": {"clip": 0.5}}
    assert difference(own, now, method_named("dpquant").settings) == "with --measure-clip 0.01, not 0.5"


def fail(*_: object, **__: object) -> NoReturn:
    raise FileSystemError("out.run does not fit: No space left on device; free some space or choose another folder")


def begun_in(folder: Path) -> int:
    return len((folder / "out.run" / "begun").read_bytes().splitlines())


def fresh(interrupted: Path, tmp_path: Path) -> Path:
    for name in ("start", "train.jsonl"):
        (tmp_path / name).symlink_to(interrupted / name)
    return tmp_path


def test_a_disk_without_room_for_the_state_costs_one_step(
    interrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fresh(interrupted, tmp_path)
    monkeypatch.setattr(RunFolder, "save", fail)
    with pytest.raises(FileSystemError):
        run_training(prepare(request_in(folder)), Session(progress=unseen))
    assert begun_in(folder) == 1


def test_no_model_is_released_whose_steps_were_all_lost(
    interrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fresh(interrupted, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", lambda *_: None)
        patched.setattr(gradient_training, "save_trained", fail)
        with pytest.raises(FileSystemError):
            run_training(prepare(request_in(folder)), Session(progress=unseen))
    assert begun_in(folder) == 10
    assert resume(folder) == 3
    assert "all 10 steps of this run were begun before any was saved, so none is left" in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_steps_that_were_lost_are_told() -> None:
    state = SavedState(updates=2, steps_begun=5, tensors={})
    said: list[str] = []
    require_steps_left(state, 10, said.append)
    require_steps_left(replace(state, updates=5), 10, said.append)
    require_steps_left(None, 10, said.append)
    words = "3 steps were begun and not saved; they count in epsilon and are not made again"
    assert said == [f"{words}, which leaves 7 updates of 10"]
