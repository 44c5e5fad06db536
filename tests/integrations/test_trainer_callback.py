"""Audits while transformers' Trainer trains, and what is left of them where others may look."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.data.data_collator import default_data_collator

import privctl
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.gate import GateOutcome
from privctl.integrations.trainer_callback import AuditCallback

Examples = list[dict[str, Tensor]]


def small() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, **tokens))


def examples(count: int, seed: int) -> Examples:
    drawn = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 32, (8,), generator=drawn) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


MEMBERS, OTHERS = examples(16, 1), examples(16, 2)


def trained(folder: Path, callback: AuditCallback, epochs: int = 8) -> Any:
    pytest.importorskip("accelerate")
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=3e-2,
        logging_steps=1,
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=small(), args=arguments, train_dataset=MEMBERS, callbacks=[callback])
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AuditCallback, Any]:
    folder = tmp_path_factory.mktemp("trainer")
    callback = privctl.AuditCallback(MEMBERS, OTHERS, output=folder / "trained")
    return folder, callback, trained(folder, callback)


def test_what_is_memorized_shows(run: tuple[Path, AuditCallback, Any]) -> None:
    _, callback, _ = run
    assert [entry.step for entry in callback.history] == [2 * (i + 1) for i in range(8)]
    assert callback.history[-1].auc > 0.9
    assert callback.history[-1].lower > 0.5
    assert callback.history[-1].lower <= callback.history[-1].auc <= callback.history[-1].upper


def test_the_measures_are_for_their_owner_alone(run: tuple[Path, AuditCallback, Any]) -> None:
    folder, callback, trainer = run
    private = folder / "trained.private-audit.json"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    kept = json.loads(private.read_text())
    assert "not for release" in kept["warning"]
    assert [each["auc"] for each in kept["membership"]] == [entry.auc for entry in callback.history]
    logged = json.dumps(trainer.state.log_history)
    assert "loss" in logged
    for path in (*folder.joinpath("checkpoints").rglob("*.json"), folder / "trained.report.json"):
        assert "auc" not in path.read_text().lower(), path
    assert "auc" not in logged


def test_the_report_is_of_a_training_that_protected_nothing(run: tuple[Path, AuditCallback, Any]) -> None:
    folder, callback, _ = run
    report = callback.report
    assert report is not None
    assert report.mechanism is None
    assert report.guarantees == ()
    assert report.parameters["updates"] == 16
    assert any("nothing bounds what they give away" in line for line in report.warnings)
    assert "private-audit" in report.omissions[0].reason
    assert privctl.verify(folder / "trained").exit_code is ExitCode.OK
    judged = privctl.gate(folder / "trained", max_epsilon=8)
    assert judged.outcome is GateOutcome.FAIL
    loaded = GPT2LMHeadModel.from_pretrained(folder / "trained")
    assert loaded.config.n_embd == 16


def state(step: int, first: bool = True) -> Any:
    return SimpleNamespace(is_world_process_zero=first, global_step=step, epoch=1.0)


def test_the_training_goes_on_as_if_it_had_not_been_measured(tmp_path: Path) -> None:
    model, callback = small(), AuditCallback(MEMBERS, OTHERS, output=tmp_path / "out", every_steps=2)
    callback.on_train_begin(None, state(0), None, train_dataloader=SimpleNamespace(collate_fn=default_data_collator))
    model.train()
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    callback.on_step_end(None, state(1), None, model=model)
    assert callback.history == ()
    callback.on_step_end(None, state(2), None, model=model)
    callback.on_epoch_end(None, state(2), None, model=model)
    assert len(callback.history) == 1
    assert model.training
    assert torch.equal(torch.rand(3), wanted)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="at least one member"):
        AuditCallback([], OTHERS, output=tmp_path / "out")
    with pytest.raises(CommandError, match="every_steps is 0"):
        AuditCallback(MEMBERS, OTHERS, output=tmp_path / "out", every_steps=0)
    loader = SimpleNamespace(collate_fn=default_data_collator)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    callback = AuditCallback(MEMBERS, OTHERS, output=tmp_path / "out")
    with pytest.raises(CommandError, match="holds files"):
        callback.on_train_begin(None, state(0), None, train_dataloader=loader)
    unlabelled = [{"input_ids": each["input_ids"]} for each in MEMBERS]
    callback = AuditCallback(unlabelled, OTHERS, output=tmp_path / "new")
    callback.on_train_begin(None, state(0), None, train_dataloader=loader)
    with pytest.raises(InputError, match="returns no loss"):
        callback.on_epoch_end(None, state(2), None, model=small())


def test_examples_on_both_sides_are_refused(tmp_path: Path) -> None:
    """Equal ones, of tensors, lists of several lengths, and texts."""
    again = [{"labels": each["labels"].clone(), "input_ids": each["input_ids"].clone()} for each in MEMBERS[:2]]
    with pytest.raises(CommandError, match="2 of 3 nonmembers are members too"):
        privctl.AuditCallback(MEMBERS, [*again, OTHERS[0]], output=tmp_path / "out")
    ragged = [{"ids": [[1, 2], [3]], "pixels": torch.ones(2, dtype=torch.bfloat16), "text": "a"}]
    with pytest.raises(CommandError, match="1 of 1 nonmembers"):
        privctl.AuditCallback(ragged, [{**ragged[0], "pixels": torch.ones(2)}], output=tmp_path / "out")
    privctl.AuditCallback(ragged, [{**ragged[0], "ids": [[1, 2], [4]]}], output=tmp_path / "out")


def test_a_loss_that_is_nan_is_an_error_with_advice(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = small()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    callback = AuditCallback(MEMBERS, OTHERS, output=tmp_path / "new")
    callback.on_train_begin(None, state(0), None, train_dataloader=SimpleNamespace(collate_fn=default_data_collator))
    with pytest.raises(InputError, match="loss for example 0 is NaN"):
        callback.on_epoch_end(None, state(1), None, model=model)
    assert callback.history == ()
