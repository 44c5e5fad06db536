"""The released directory: whole or absent, loadable, and exactly what its report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from transformers import AutoModelForCausalLM, AutoTokenizer

from privctl.codec import decode
from privctl.demo import model as demo
from privctl.demo.records import WORDS, draw_notes
from privctl.domain.errors import InputFault, UsageFault
from privctl.domain.mechanism import ClippedTraining
from privctl.storage.reader import open_checkpoint
from privctl.training import release
from privctl.training.clipped import train_clipped
from privctl.training.release import Trained, save_trained


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """Two steps of training on eight notes."""
    notes = draw_notes(20, 0).members[:8]
    data = tmp_path / "notes.jsonl"
    data.write_bytes(demo.jsonl(notes))
    tokenizer = demo.build_tokenizer()
    network = demo.build_network(tokenizer, 0)
    facts = ClippedTraining(epochs=1, learning_rate=0.1, clip_norm=1.0, dataset_size=8, batch_size=4)
    with demo.one_thread():
        run = train_clipped(network, demo.encoded(tokenizer, notes), facts, seed=0)
    return Trained(network=network, tokenizer=tokenizer, run=run, data=data, parameters={"initial_seed": 0})


def test_directory_loads_as_what_was_trained(trained: Trained, tmp_path: Path) -> None:
    save_trained(trained, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    for name, value in trained.network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    text = draw_notes(20, 0).members[0]
    assert tokenizer(text)["input_ids"] == trained.tokenizer(text)["input_ids"]
    assert tokenizer.pad_token_id == 0
    assert not list(tmp_path.glob(".*")), "temporary files were left"


def test_report_says_what_lies_there(trained: Trained, tmp_path: Path) -> None:
    returned = save_trained(trained, tmp_path / "out")
    place = tmp_path / "out.report.json"
    report = decode(place.read_text(), "report")
    assert report == returned
    assert (report.step, report.mechanism, report.guarantees) == ("retrain", trained.run.facts, ())
    assert any("no noise was added" in warning for warning in report.warnings)
    assert {a.path for a in report.outputs} == {f"out/{p.name}" for p in (tmp_path / "out").iterdir()}
    assert [a.path for a in report.inputs] == ["notes.jsonl"]
    for artifact in (*report.outputs, *report.inputs):
        content = (tmp_path / artifact.path).read_bytes()
        assert artifact.digest == "blake3:" + blake3(content).hexdigest()
        assert artifact.bytes == len(content)
    (weights,) = (a for a in report.outputs if a.role == "model")
    held = trained.network.state_dict()
    assert {t.name for t in weights.tensors} == held.keys() - {"lm_head.weight"}
    for tensor in weights.tensors:
        assert tensor.digest == "blake3:" + blake3(held[tensor.name].numpy().tobytes()).hexdigest()
    assert report.parameters["learning_rate"] == 0.1
    assert [e.estimate for e in report.evidence] == [
        trained.run.epochs[-1].loss,
        trained.run.epochs[-1].clipped_fraction,
    ]


def test_header_points_to_the_report(trained: Trained, tmp_path: Path) -> None:
    save_trained(trained, tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert checkpoint.files[0].metadata == {"format": "pt", "privctl.report": "../out.report.json"}
        names = [t.name for t in checkpoint.files[0].tensors]
    assert names == sorted(names)


def test_same_weights_give_the_same_bytes(trained: Trained, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        save_trained(trained, tmp_path / folder / "out")
    for path in (tmp_path / "a" / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "out" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("step", ["_companions", "_write_weights", "_report", "_outputs"])
def test_failure_midway_leaves_neither_directory_nor_report(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(release, step, stop)
    with pytest.raises(KeyboardInterrupt):
        save_trained(trained, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.jsonl"]


def test_report_is_there_before_the_directory(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: release.PendingFolder) -> None:
        assert (tmp_path / "out.report.json").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(release.PendingFolder, "commit", refuse)
    with pytest.raises(KeyboardInterrupt):
        save_trained(trained, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_replaced(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageFault, match="exists and is a folder"):
        save_trained(trained, tmp_path / "out", force=True)
    (tmp_path / "new.report.json").write_text("{}")
    with pytest.raises(UsageFault, match="new.report.json exists"):
        save_trained(trained, tmp_path / "new")
    save_trained(trained, tmp_path / "new", force=True)
    assert json.loads((tmp_path / "new.report.json").read_text())["step"] == "retrain"


def test_weights_that_are_not_finite_are_not_released(trained: Trained, tmp_path: Path) -> None:
    with torch.no_grad():
        trained.network.transformer.ln_f.bias[0] = float("inf")
    with pytest.raises(InputFault, match="ln_f.bias' holds NaN or infinity"):
        save_trained(trained, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_notes_are_split_by_a_fair_coin_and_known_to_the_tokenizer() -> None:
    drawn = draw_notes(2000, 0)
    assert len(drawn.members) + len(drawn.nonmembers) == 2000
    assert 900 < len(drawn.members) < 1100
    assert not set(drawn.members) & set(drawn.nonmembers)
    assert draw_notes(2000, 0) == drawn != draw_notes(2000, 1)
    tokenizer = demo.build_tokenizer()
    assert len(tokenizer) == len(WORDS) + 4
    ids = demo.encoded(tokenizer, (*drawn.members, *drawn.nonmembers))
    assert {len(i) for i in ids} == {26}
    assert not any(tokenizer.unk_token_id in i for i in ids)
    assert all((i[0], i[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id) for i in ids)


def test_demonstration_in_small(tmp_path: Path) -> None:
    done: list[int] = []
    prepared = demo.prepare(tmp_path, seed=1, notes=24, advance=done.append)
    assert sum(done) == demo.steps(1, 24)
    assert prepared.report.mechanism == demo.training_facts(len(prepared.members.read_text().splitlines()))
    assert AutoModelForCausalLM.from_pretrained(prepared.model).config.vocab_size == len(WORDS) + 4
    assert prepared.report.evidence[0].details["epoch 1"] > prepared.report.evidence[0].estimate
