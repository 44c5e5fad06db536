"""Every method that clips refuses a model whose records reach each other, and takes or cures the others."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import FNetConfig
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

from privctl.cli import run
from privctl.domain.errors import RunInterruptedError
from privctl.domain.guarantee import AssumptionState, Guarantee
from privctl.models.tasks.language import CausalLanguage
from privctl.reports.files import read_report
from privctl.train.clipping.sinks import KeepingSink
from privctl.train.methods.ferret.trainer import FerretTrainer
from privctl.train.steps.loop import Trainer
from tests.models.tasks.small import architecture, words
from tests.zoo.shrink import build, write_data

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
FERRET = ["ferret", "--release", "gaussian", "--groups", "4", "--noise-multiplier", "1", "--epochs", "6"]
METHODS = {
    "dp-sgd": ["dp-sgd", "--noise-multiplier", "1"],
    "per-layer": ["dp-sgd", "--noise-multiplier", "1", "--clipping", "per-layer"],
    "clipped": ["clipped", "--epochs", "1"],
    "dpquant": ["dpquant", "--format", "luq-fp4", "--noise-multiplier", "1"],
    **{f"ferret {name}": [*FERRET, "--derivatives", name] for name in ("backward", "partial", "forward", "difference")},
}


@pytest.fixture(autouse=True)
def _alone(one_thread: None) -> None:
    """Small networks lose by threads."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    drawn = random.Random(0)
    lines = [json.dumps({"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9)))}) for _ in range(30)]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return started(tmp_path / "start", "gpt2")


def started(folder: Path, kind: str) -> Path:
    words().tokenizer.save_pretrained(architecture(folder, kind))
    return folder


def retrain(arguments: list[str], model: Path, data: Path, output: Path, *more: str) -> int:
    method, *settings = arguments
    call = ["retrain", method, str(model), "--data", str(data), "-o", str(output), "--batch-size", "6", "--steps", "3"]
    if "--epochs" in settings:
        call = call[:-2]
    # a small share of the tokens that a run would take at once, for time
    return run([*call, *settings, "--device", "cpu", "-q", "--micro-tokens", "160", *more])


def report_of(output: Path) -> Any:
    return read_report(output.with_name(output.name + ".report.json"))


def contribution(guarantee: Guarantee) -> Any:
    (found,) = [a for a in guarantee.assumptions if a.name == "contribution"]
    return found


#: Methods whose self-test is another's, in a quick test of the same kind.
SLOW = {"ferret difference", "clipped"}
#: Methods whose self-test the quick test of sound models sees in their reports.
REPORTED = {"per-layer", "dpquant", "ferret forward"}


def slow(names: Iterable[str], which: Collection[str] = SLOW) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in which else name for name in names]


def mixing(self: Any, hidden: Tensor) -> Tensor:
    """Planted fault: each record gets a little of the first words of all."""
    found: Tensor = self.c_proj(self.act(self.c_fc(hidden)))
    return found - 0.1 * found[:, 1:3].mean((0, 1))


@pytest.mark.parametrize("method", slow(METHODS, REPORTED))
def test_records_that_reach_each_other_are_refused(
    method: str, gpt2: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(GPT2MLP, "forward", mixing)
    before = sorted(tmp_path.rglob("*"))
    assert retrain(METHODS[method], gpt2, data, tmp_path / "out") == 3
    stderr = capsys.readouterr().err
    assert "depends on the content of the other records in its batch" in stderr
    assert "first in module 'transformer.h.0.mlp' (GPT2MLP)" in stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "method",
    slow((name for name in METHODS if name not in ("ferret backward", "ferret partial")), {*SLOW, *REPORTED}),
)
def test_sound_models_pass_and_the_report_says_what_was_tested(
    method: str, gpt2: Path, data: Path, tmp_path: Path
) -> None:
    assert retrain(METHODS[method], gpt2, data, tmp_path / "out") == 0
    report = report_of(tmp_path / "out")
    test = report.parameters["contribution_test"]
    assert test["padded_to"] is None
    assert any("float32" in stage for stage in test["differences"])
    assert all(0 <= moved < test["allowed"][stage] for stage, moved in test["differences"].items())
    assert ("quantized layers" in test["differences"]) == (method == "dpquant")
    if method != "clipped":
        found = contribution(report.guarantees[0])
        assert found.state is AssumptionState.ENFORCED
        assert "within rounding of 0.0001 of its size in" in found.statement


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["--bf16"],
        *(pytest.param([name], marks=pytest.mark.slow) for name in ("--dropout", "--checkpointing")),
        pytest.param(["--lora-rank", "2"], marks=pytest.mark.slow),
    ],
)
def test_other_ways_to_run_pass(more: list[str], gpt2: Path, data: Path, tmp_path: Path) -> None:
    if "--lora-rank" in more:
        pytest.importorskip("peft")
    assert retrain(METHODS["dp-sgd"], gpt2, data, tmp_path / "out", *more) == 0
    stages = report_of(tmp_path / "out").parameters["contribution_test"]["differences"]
    assert set(stages) == {"float32", "bfloat16"} if "--bf16" in more else {"float32"}


@pytest.mark.parametrize(
    "method", ["dp-sgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dpquant", "ferret forward"))]
)
def test_made_up_records_find_what_memory_holds(
    method: str, gpt2: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    losses, most = CausalLanguage.losses, 60

    def tight(task: Any, network: Any, batch: Any) -> Tensor:
        if batch["input_ids"].numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses(task, network, batch)

    monkeypatch.setattr(CausalLanguage, "losses", tight)
    assert retrain(METHODS[method], gpt2, data, tmp_path / "out") == 0
    test = report_of(tmp_path / "out").parameters["contribution_test"]
    assert test["tokens"] == 40, "of 160, halved twice"
    most = 5
    assert retrain(METHODS[method], gpt2, data, tmp_path / "none") == 3
    assert "the memory of cpu does not hold one record" in capsys.readouterr().err
    assert not (tmp_path / "none.run").exists()


@pytest.mark.slow
def test_two_passes_are_taken_where_one_record_is_too_much_for_one(
    gpt2: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def tight(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(KeepingSink, "receive", tight)
    assert (
        retrain([*METHODS["dp-sgd"], "--clipping-passes", "auto", "--checkpointing"], gpt2, data, tmp_path / "out") == 0
    )
    parameters = report_of(tmp_path / "out").parameters
    assert parameters["clipping_passes"] == 2
    assert parameters["contribution_test"]["tokens"] == 160, "as much at once as was asked for"
    assert retrain([*METHODS["dp-sgd"], "--clipping-passes", "auto"], gpt2, data, tmp_path / "none") == 3
    assert "--checkpointing with --clipping-passes 2" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "release",
    [
        ["--release", "randomized-response", "--bit-epsilon", "1", "--groups", "2", "--epochs", "6"],
        pytest.param(
            ["--dither", "1", "--fire-probability", "0.5", "--groups", "2", "--epochs", "6"], marks=pytest.mark.slow
        ),
    ],
)
def test_what_rests_on_no_clipped_gradient_is_not_held_to_it(
    release: list[str], gpt2: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record may turn every sign of its batch: what batches leave behind is tested, what records share is not."""
    monkeypatch.setattr(GPT2MLP, "forward", mixing)
    assert retrain(["ferret", *release], gpt2, data, tmp_path / "out") == 0
    report = report_of(tmp_path / "out")
    assert report.parameters["contribution_test"]["differences"] == {}
    assert "no batch leaves anything behind" in contribution(report.guarantees[0]).statement


def fnet(folder: Path) -> Path:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 40}
    FNetConfig(vocab_size=90, initializer_range=0.3, **sizes).save_pretrained(folder)
    words().tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["dp-sgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("clipped", "ferret partial", "dpquant"))],
)
def test_fnet_is_padded_to_a_public_length(method: str, data: Path, tmp_path: Path, capsys: Any) -> None:
    more = ["--task", "masked-lm", "--max-length", "12"]
    assert retrain(METHODS[method], fnet(tmp_path / "fnet"), data, tmp_path / "out", *more) == 0
    report = report_of(tmp_path / "out")
    assert report.parameters["contribution_test"]["padded_to"] == 12
    if method != "clipped":
        assert "every text being padded to 12 tokens" in contribution(report.guarantees[0]).statement
    # Without -q a message says so.
    call = ["retrain", "dp-sgd", str(tmp_path / "fnet"), "--data", str(data), "-o", str(tmp_path / "told"), *more]
    if method == "dp-sgd":
        assert run([*call, "--steps", "1", "--noise-multiplier", "1", "--batch-size", "6", "--device", "cpu"]) == 0
        assert "every text is padded to 12 tokens" in capsys.readouterr().err


def test_secrets_are_held_to_it_too(
    gpt2: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    book, plan = tmp_path / "secrets.jsonl", tmp_path / "plan.safetensors"
    rows = [line["text"].split()[0] for line in map(json.loads, data.read_text().splitlines())]
    entry = {"id": "a", "prior": 0.01, "posterior": 0.3, "kind": "name", "value": "cat"}
    entry["records"] = [i for i, word in enumerate(rows) if word == "cat"]
    book.write_text(json.dumps(entry) + "\n")
    call = ["secrets", "plan", str(data), "--secrets", str(book), "--steps", "4", "--batch-size", "4", "-o", str(plan)]
    assert run([*call, "-q"]) == 0, capsys.readouterr().err
    private = ["retrain", "dp-sgd", str(gpt2), "--data", str(data), "--secrets", str(plan), "--device", "cpu", "-q"]
    assert run([*private, "-o", str(tmp_path / "sound"), "--micro-tokens", "160"]) == 0
    for guarantee in report_of(tmp_path / "sound").guarantees:
        assert "tested on made-up records" in contribution(guarantee).statement
    monkeypatch.setattr(GPT2MLP, "forward", mixing)
    assert run([*private, "-o", str(tmp_path / "out"), "--micro-tokens", "160"]) == 3
    assert "depends on the content of the other records" in capsys.readouterr().err


@pytest.mark.slow
def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    source = np.random.default_rng(0)
    data = tmp_path / "train.npz"
    np.savez(data, images=source.integers(256, size=(20, 8, 8, 3)).astype(np.uint8), labels=np.array(list("ab") * 10))
    model = architecture(tmp_path / "vit", "vit")
    more = ["--task", "image-classification"]
    assert retrain(METHODS["dp-sgd"], model, data, tmp_path / "out", *more) == 0
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    plain = ViTEmbeddings.forward

    def centred(self: Any, *arguments: Any, **keywords: Any) -> Tensor:
        found: Tensor = plain(self, *arguments, **keywords)
        return found - 0.1 * found.mean(0)

    monkeypatch.setattr(ViTEmbeddings, "forward", centred)
    assert retrain(METHODS["dp-sgd"], model, data, tmp_path / "other", *more) == 3
    assert "depends on the content of the other records" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["dp-sgd", pytest.param("ferret partial", marks=pytest.mark.slow)])
def test_a_run_that_goes_on_is_tested_again(
    method: str, gpt2: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise RunInterruptedError("stopped")

    with monkeypatch.context() as patch:
        for trainer in (Trainer, FerretTrainer):
            patch.setattr(trainer, "run", stopped)
        assert retrain(METHODS[method], gpt2, data, tmp_path / "out") not in (0, 3)
    kept = {path: path.read_bytes() for path in (tmp_path / "out.run").iterdir()}
    assert kept
    with monkeypatch.context() as patch:
        patch.setattr(GPT2MLP, "forward", mixing)
        assert retrain(METHODS[method], gpt2, data, tmp_path / "out", "--resume") == 3
    assert {path: path.read_bytes() for path in (tmp_path / "out.run").iterdir()} == kept
    if method == "dp-sgd":
        assert retrain(METHODS[method], gpt2, data, tmp_path / "out", "--resume") == 0


def test_what_is_refused_does_not_depend_on_the_records(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made-up records are the same whatever the data: even where it could show nothing."""
    data = tmp_path / "one.jsonl"
    data.write_text('{"text": "cat"}\n' * 30)
    monkeypatch.setattr(GPT2MLP, "forward", mixing)
    assert retrain(METHODS["dp-sgd"], gpt2, data, tmp_path / "out") == 3


@pytest.mark.parametrize("method", ["dp-sgd", pytest.param("ferret backward", marks=pytest.mark.slow)])
def test_dropout_is_drawn_from_a_secret_seed(method: str, gpt2: Path, data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = torch.initial_seed()
    shorter = () if method.startswith("ferret") else ("--steps", "1")
    assert retrain(METHODS[method], gpt2, data, tmp_path / "out", "--dropout", *shorter) == 0
    assert torch.initial_seed() != before


@pytest.mark.slow
def test_the_report_says_what_was_taken_as_a_whole(tmp_path: Path, capsys: Any) -> None:
    build("causal-lm", "llama4_text", tmp_path / "model")
    data = write_data("causal-lm", tmp_path / "data")
    call = ["retrain", "dp-sgd", str(tmp_path / "model"), "--data", str(data), "-o", str(tmp_path / "out")]
    call += ["--batch-size", "6", "--steps", "2", "--noise-multiplier", "1", "--delta", "1e-3", "--device", "cpu"]
    sentence = "module model.layers.0.feed_forward (Llama4TextMoe) and 1 other module are differentiated as a whole"
    capsys.readouterr()
    assert run([*call, "--dry-run"]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert run(call) == 0
    assert sentence in capsys.readouterr().err
    test = report_of(tmp_path / "out").parameters["contribution_test"]
    assert [each["module"] for each in test["promoted"]] == [f"model.layers.{i}.feed_forward" for i in (0, 1)]
    assert 0 < test["promoted_share"] < 1
    assert test["differences"]["float32"] < 1e-5
