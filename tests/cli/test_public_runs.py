"""``retrain dp-sgd --public``: trained, resumed, verified, forged, and refused where it does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import privctl
from privctl.cli import run
from privctl.domain.errors import CommandError, InputError, RunInterruptedError
from privctl.domain.guarantee import AssumptionState, Status
from privctl.domain.progress import unseen
from privctl.reports.files import read_report
from privctl.train.methods import method_named
from privctl.train.preparation.prepare import prepare
from privctl.train.run import run_training
from privctl.train.settings.request import (
    BudgetRequest,
    DataRequest,
    ModelRequest,
    PublicRequest,
    RetrainRequest,
)
from privctl.train.settings.session import Session
from tests.cli.public_files import OPTIONS, PUBLIC, STEPS, mixed, prepared_publicly, write
from tests.cli.short_runs import dp_sgd, half_the_noise, verified_after
from tests.seeded import SEEDED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_publicly(tmp_path_factory.mktemp("public"))


def request(folder: Path, output: Path, **changes: Any) -> RetrainRequest:
    return RetrainRequest(
        method=method_named("dp-sgd"), model=ModelRequest(path=folder / "start"),
        data=DataRequest(train=folder / "train.jsonl"), budget=BudgetRequest(epsilon=6.0), output=output,
        batch_size=6, steps=STEPS, device="cpu", **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The report of a run that was stopped after its first step, and resumed."""
    asked = PublicRequest(data=folder / "public.jsonl", weight=0.5, batch_size=4)
    with pytest.raises(RunInterruptedError):
        run_training(
            prepare(request(folder, folder / "out", public=asked)),
            Session(progress=unseen, interrupts=nullcontext(lambda: True)),
        )
    resume = [*dp_sgd(folder, folder / "out", *OPTIONS), "-q", "--resume"]
    same = ["--public", str(folder / "public.jsonl"), "--public-weight", "0.5", "--public-batch-size", "4"]
    assert run(resume) == 2
    assert run([*resume, *same[:-1], "5"]) == 2
    assert run([*resume, *same[:2], *same[4:]]) == 2
    assert run([*resume, *same, "--public-overlap", "keep"]) == 2
    content = (folder / "public.jsonl").read_text()
    (folder / "public.jsonl").write_text(content.replace("dog", "cat", 1))
    assert run([*resume, *same]) == 2
    (folder / "public.jsonl").write_text(content)
    assert run([*resume, *same]) == 0
    return folder / "out.report.json"


def test_a_run_says_what_took_part_and_is_verified(
    trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = read_report(trained)
    stated = {name: value for name, value in report.parameters.items() if name.startswith("public")}
    assert stated == {
        "public_weight": 0.5, "public_batch_size": 4, "public_examples": PUBLIC, "public_overlap": "refuse",
    }  # fmt: skip
    (file,) = [artifact for artifact in report.inputs if artifact.role == "public"]
    assert file.path == "public.jsonl"
    guarantee = report.guarantees[0]
    states = {assumption.name: assumption.state for assumption in guarantee.assumptions}
    assert states["public data"] is AssumptionState.ASSERTED
    assert states["separate public data"] is AssumptionState.CHECKED
    assert guarantee.status is Status.CONDITIONAL
    assert {"public_loss"} <= {name for entry in report.parameters["history"] for name in entry}
    assert not any("training" in name for entry in report.parameters["history"] for name in entry)
    capsys.readouterr()
    files = ["--data", str(folder / "train.jsonl"), "--public", str(folder / "public.jsonl")]
    assert run(["verify", str(trained), "-q", "-v", *files]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "public.jsonl holds 11 records, as the report says" in stdout
    assert "no record of public.jsonl stands in the private data: whole texts were compared" in stdout


def test_the_noise_is_what_it_is_without_public_records(trained: Path, folder: Path, tmp_path: Path) -> None:
    """They cost nothing: epsilon, ledger and noise are those of the run without them."""
    assert run([*dp_sgd(folder, tmp_path / "a", *OPTIONS), "-q"]) == 0
    plain, with_them = read_report(tmp_path / "a.report.json"), read_report(trained)
    assert plain.mechanism == with_them.mechanism
    assert plain.guarantees[0].epsilon == with_them.guarantees[0].epsilon


def test_without_weight_the_model_is_the_same_to_the_last_bit(folder: Path, tmp_path: Path) -> None:
    for name, more in (("without", []), ("nothing", ["0"]), ("something", ["0.5"])):
        public = ["--public", str(folder / "public.jsonl"), "--public-weight", *more] if more else []
        with SEEDED.named("the same draws"):
            assert run([*dp_sgd(folder, tmp_path / name, *OPTIONS, *public), "-q"]) == 0
    names = ("without", "nothing", "something")
    without, nothing, something = (load_file(tmp_path / name / "model.safetensors") for name in names)
    assert without.keys() == nothing.keys()
    assert all(torch.equal(without[name], nothing[name]) for name in without)
    assert max(float((without[name] - something[name]).abs().max()) for name in without) > 1e-4
    assert run(["verify", str(tmp_path / "nothing.report.json"), "-q"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--bands", "2"),
        pytest.param(("--target-unclipped-quantile", "0.5"), marks=pytest.mark.slow),
        pytest.param(("--batches", "balls-and-bins"), marks=pytest.mark.slow),
        pytest.param(("--lora-rank", "2"), marks=pytest.mark.slow),
        pytest.param(("--buffers", "2"), marks=pytest.mark.slow),
        pytest.param(("--largest-batch", "8"), marks=pytest.mark.slow),
        pytest.param(("--checkpointing", "--clipping-passes", "2"), marks=pytest.mark.slow),
        pytest.param(("--unit", "text", "--records-per-draw", "2", "--batch-size", "1"), marks=pytest.mark.slow),
    ],
)
def test_it_goes_with_other_noise_batches_and_clip_norms(
    more: tuple[str, ...], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Public gradients may move weights farther than clipped ones could, which verify must not take for a lie."""
    assert run(mixed(folder, tmp_path / "a", *more)) == 0
    assert run(["verify", str(tmp_path / "a.report.json"), "-q"]) == 0
    capsys.readouterr()


def _without_input(report: Any) -> None:
    report["inputs"] = [artifact for artifact in report["inputs"] if artifact["role"] != "public"]


def _without_parameters(report: Any) -> None:
    for name in [name for name in report["parameters"] if name.startswith("public")]:
        del report["parameters"][name]


def _without(name: str) -> Callable[[Any], None]:
    def change(report: Any) -> None:
        for guarantee in report["guarantees"]:
            guarantee["assumptions"] = [
                assumption for assumption in guarantee["assumptions"] if assumption["name"] != name
            ]

    return change


def _hidden(report: Any) -> None:
    """As if no public record had taken part."""
    _without_input(report)
    _without_parameters(report)
    for name in ("public data", "separate public data"):
        _without(name)(report)


@pytest.mark.forged("it hides public records")
def test_weights_that_public_gradients_moved_are_no_lie_unless_they_are_hidden(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without that rule the bounds for clipped gradients and noise would refute an honest run of SGD."""
    sgd = ("--optimizer", "sgd", "--learning-rate", "0.05", "--public-weight", "20")
    assert run(mixed(folder, tmp_path / "a", *sgd)) == 0
    capsys.readouterr()
    assert run(["verify", str(tmp_path / "a.report.json"), "-q"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "gradients of public records were not clipped, and nothing bounds what sgd makes of them" in stdout
    assert verified_after(tmp_path / "a.report.json", _hidden) == 1
    stdout = " ".join(capsys.readouterr().out.split())
    assert "REFUTED: weights: a weight of tensor" in stdout


def _state(name: str, state: str) -> Callable[[Any], None]:
    def change(report: Any) -> None:
        for guarantee in report["guarantees"]:
            for assumption in guarantee["assumptions"]:
                if assumption["name"] == name:
                    assumption["state"] = state

    return change


def _digest(report: Any) -> None:
    for artifact in report["inputs"]:
        if artifact["role"] == "public":
            artifact["digest"] = "blake3:" + "0" * 64


def _parameter(**changes: Any) -> Callable[[Any], None]:
    return lambda report: report["parameters"].update(changes)


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "half of the noise": half_the_noise,
    "another weight": _parameter(public_weight=0.25),
    "a weight below 0": _parameter(public_weight=-1.0),
    "another batch": _parameter(public_batch_size=5),
    "more in a batch than there are": _parameter(public_batch_size=PUBLIC + 1),
    "fewer records": _parameter(public_examples=PUBLIC - 1),
    "another way with shared records": _parameter(public_overlap="left out"),
    "one number less": lambda report: report["parameters"].pop("public_examples"),
    "no file": _without_input,
    "another digest": _digest,
    "no word of how": _without_parameters,
    "no assumption": _without("public data"),
    "nothing said of shared records": _without("separate public data"),
    "said to be checked": _state("public data", "checked"),
    "said to be enforced": _state("separate public data", "enforced"),
}


@pytest.mark.forged("each is a lie about public records or noise")
@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_not_so_is_refuted(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verified_after(trained, FORGERIES[name]) == 1
    capsys.readouterr()


def test_other_public_files_are_refuted(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (folder / "public.jsonl").read_text().splitlines()
    (tmp_path / "fewer.jsonl").write_text("\n".join(lines[:-1]))
    (tmp_path / "other.jsonl").write_text("\n".join([*lines[:-1], json.dumps({"text": "THE cat sat on themat"})]))
    for name, sentence in (
        ("fewer", "fewer.jsonl holds 10 records, and the report says 11"),
        ("other", "a record of other.jsonl stands in the private data too"),
    ):
        files = ["--data", str(folder / "train.jsonl"), "--public", str(tmp_path / f"{name}.jsonl")]
        assert run(["verify", str(trained), "-q", *files]) == 1
        stdout = " ".join(capsys.readouterr().out.split())
        assert sentence in stdout
        assert "is not what was mixed in: its digest differs" in stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--gradient-canaries", "20"),
        pytest.param(
            ("--search", "learning-rate=1e-3,3e-3", "--expected-runs", "1.2", "--runs-law", "geometric"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_goes_with_canaries_and_searches(
    more: tuple[str, ...], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Canaries join the private sums alone, and public records are the same in every run of a search."""
    write(folder / "held.jsonl", ["a dog sat", "a dog sat on the mat"])
    assert run(mixed(folder, tmp_path / "a", "--held-out", str(folder / "held.jsonl"), *more)) == 0
    report = read_report(tmp_path / "a.report.json")
    assert {"public data", "separate public data"} <= {
        assumption.name for assumption in report.guarantees[0].assumptions
    }
    files = ["--data", str(folder / "train.jsonl"), "--public", str(folder / "public.jsonl")]
    assert run(["verify", str(tmp_path / "a.report.json"), "-q", *files]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--public-weight", "-1"), "--public-weight is -1; it must be at least 0"),
        (("--public-weight", "nan"), "--public-weight is nan; it must be at least 0"),
        (("--public-batch-size", "12"), "--public-batch-size 12 exceeds the public data, which holds 11 records"),
        (("--public-batch-size", "0"), "--public-batch-size"),
        (("--secrets", "plan.safetensors"), "not searched for the secrets"),
        (("--public", "train.jsonl"), "train.jsonl is the private data"),
        (("--held-out", "public.jsonl"), "public.jsonl is what the model is evaluated on"),
    ],
)
def test_what_does_not_fit_is_refused(
    more: tuple[str, str], sentence: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = str(folder / more[1]) if more[1].endswith("jsonl") else more[1]
    assert run(mixed(folder, tmp_path / "a", more[0], value)) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_without_records_and_settings_without_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty.jsonl").write_text("")
    assert run(mixed(folder, tmp_path / "a", public="empty.jsonl")) == 3
    assert "empty.jsonl holds no records" in capsys.readouterr().err
    assert run([*dp_sgd(folder, tmp_path / "a", *OPTIONS), "--public-weight", "2"]) == 2
    assert "give --public too" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["dp-zo", "dpquant", "ferret", "clipped", "plain"])
def test_other_methods_say_who_takes_public_records(
    method: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"dpquant": {"format": "luq-fp4"}, "ferret": {"release": "gaussian"}}.get(method, {})
    with pytest.raises(CommandError, match=f"--public is no option of {method}"):
        privctl.retrain(
            method, folder / "start", data=folder / "train.jsonl", output=tmp_path / "a",
            public=folder / "public.jsonl", **own,
        )  # fmt: skip
    start, data = str(folder / "start"), str(folder / "train.jsonl")
    assert run(["retrain", method, start, "--data", data, "--public", "x", "-o", str(tmp_path / "a")]) == 2
    assert f"privctl retrain {method} has no option '--public'; dp-sgd has it." in capsys.readouterr().err


def test_its_time_is_told_beforehand(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*mixed(folder, tmp_path / "a"), "--dry-run"]) == 0
    printed = " ".join("".join(capsys.readouterr()).split())
    assert "of the time is for the gradients of public records, of which a step takes 6" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_function_takes_what_the_command_takes(folder: Path, tmp_path: Path) -> None:
    report = privctl.retrain(
        "dp-sgd", folder / "start", data=folder / "train.jsonl", output=tmp_path / "a", batch_size=6, steps=2,
        epsilon=6.0, device="cpu", public=folder / "public.jsonl", public_weight=2,
    )  # fmt: skip
    assert report.parameters["public_weight"] == 2.0
    assert report.parameters["public_batch_size"] == 6, "as many as private ones, unless there are fewer"
    with pytest.raises(CommandError, match="--public-weight is inf"):
        privctl.retrain(
            "dp-sgd", folder / "start", data=folder / "train.jsonl", output=tmp_path / "b", epsilon=6.0,
            public=folder / "public.jsonl", public_weight=float("inf"),
        )  # fmt: skip


def test_a_public_file_that_changes_while_it_trains_is_refused(folder: Path, tmp_path: Path) -> None:
    """The report would name other records than those that took part."""
    write(tmp_path / "public.jsonl", ["the dog sat", "the dog sat on the mat"])
    asked = replace(request(folder, tmp_path / "a"), public=PublicRequest(data=tmp_path / "public.jsonl", weight=1.0))

    def change(_: object) -> None:
        write(tmp_path / "public.jsonl", ["the dog sat", "the dog sat on the cat"])

    with pytest.raises(InputError, match="data were changed since the run began"):
        run_training(prepare(asked), Session(progress=unseen, on_epoch=change))
