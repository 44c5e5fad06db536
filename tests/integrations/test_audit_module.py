"""Audits of a network of one's own class, from coins to the gate, by a function that privctl calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.gate import GateOutcome
from privctl.domain.verdict import Outcome
from privctl.reports.audit_log import read_log
from privctl.reports.files import read_report, write_report

RECORDS = 120


class Own(nn.Module):
    """A class that no library knows, with a part that behaves otherwise in training."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.inner, self.drop, self.outer = nn.Linear(6, width), nn.Dropout(0.5), nn.Linear(width, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outcome: Tensor = self.outer(self.drop(self.inner(inputs).relu()))
        return outcome


def tensors(records: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([record["inputs"] for record in records]), torch.tensor([record["label"] for record in records])


def negative_losses(network: nn.Module, records: list[dict[str, Any]]) -> Tensor:
    inputs, labels = tensors(records)
    return -F.cross_entropy(network(inputs), labels, reduction="none")


@pytest.fixture(scope="module")
def own_training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split, and beside it a network that was trained privately on its members for one pass."""
    folder = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    lines = [
        json.dumps({"inputs": torch.randn(6).tolist(), "label": int(torch.randint(0, 2, ()))}) for _ in range(RECORDS)
    ]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    privctl.audit_split(folder / "records.jsonl", output=folder / "split")
    train(folder / "split")
    return folder


@pytest.fixture
def split(own_training: Path, tmp_path: Path) -> Path:
    shutil.copytree(own_training, tmp_path, dirs_exist_ok=True)
    return tmp_path / "split"


def members(split: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (split / "members.jsonl").read_text().splitlines()]


def train(split: Path) -> None:
    data = TensorDataset(*tensors(members(split)))
    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = privctl.make_private(
        model, optimizer, DataLoader(data, batch_size=15), noise_multiplier=4.0, clip_norm=5.0
    )
    for inputs, labels in training.loader:
        training.backward(lambda i=inputs, n=labels: F.cross_entropy(model(i), n, reduction="none"))  # type: ignore[misc]
        optimizer.step()
    path = split.parent / "own.safetensors"
    save_file(model.state_dict(), path)
    training.report(path)


def private(split: Path) -> tuple[Own, Path]:
    """The network that was trained privately on the members, and where it was saved with its report."""
    path, model = split.parent / "own.safetensors", Own()
    model.load_state_dict(load_file(path))
    return model, path


def test_the_whole_loop_ends_at_a_gate_that_passes(split: Path) -> None:
    model, path = private(split)
    model.train()
    report = privctl.audit_module(model, path, negative_losses, split=split, least_auc=0.8)
    assert model.training
    assert model.drop.training
    beside = path.with_name("own.audit.report.json")
    for name in (path, beside):
        assert privctl.verify(name).exit_code is ExitCode.OK
    assert [verdict.subject.partition(")-DP")[1] for verdict in report.verdicts][1:2] == [")-DP"]
    assert Outcome.REFUTED not in [verdict.outcome for verdict in report.verdicts]
    trained = privctl.verify(path).report
    asserted = [assumption.name for assumption in trained.guarantees[0].assumptions if assumption.state == "asserted"]
    policy: dict[str, Any] = {"max_epsilon": 100, "required_steps": ["audit"], "max_auc": 0.9}
    assert privctl.gate(path, **policy, accepted_assumptions=asserted).outcome is GateOutcome.INCONCLUSIVE
    whole = privctl.gate(path, **policy, accepted_assumptions=[*asserted, "scores of the model"])
    assert whole.outcome is GateOutcome.PASS, [f.message for f in whole.findings]
    changed = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    save_file(changed, path)
    assert (
        privctl.gate(path, **policy, accepted_assumptions=[*asserted, "scores of the model"]).outcome
        is GateOutcome.FAIL
    )


def test_a_network_that_learned_its_members_is_caught_and_its_claim_refuted(split: Path) -> None:
    """Planted: a network that was fitted to the members lies under the report of one that says it was private."""
    model, place = private(split)
    inputs, labels = tensors(members(split))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(120):
        optimizer.zero_grad()
        F.cross_entropy(model.outer(model.inner(inputs).relu()), labels).backward()
        optimizer.step()
    save_file(model.state_dict(), place)
    privctl.from_opacus([(20.0, 0.25, 4)], place, examples=len(labels), force=True)
    report = privctl.audit_module(model, place, negative_losses, split=split)
    outcomes = {verdict.subject.partition(",")[0]: verdict.outcome for verdict in report.verdicts}
    assert outcomes["members cannot be told from non-members"] is Outcome.REFUTED
    assert any(verdict.outcome is Outcome.REFUTED and ")-DP" in verdict.subject for verdict in report.verdicts)


def test_records_come_in_an_order_that_tells_nothing_and_several_scores_are_judged(split: Path) -> None:
    model, path = private(split)
    memberships: list[list[bool]] = []

    def scores(network: nn.Module, records: list[tuple[bool, Tensor]]) -> dict[str, Tensor]:
        memberships.append([member for member, _ in records])
        output = network(torch.stack([inputs for _, inputs in records]))
        return {"first": output[:, 0], "gap": output[:, 0] - output[:, 1]}

    sides = {name: [(name == "members", torch.randn(6)) for _ in range(60)] for name in ("members", "nonmembers")}
    report = privctl.audit_module(model, path, scores, **sides, batch_size=30)
    assert report.parameters["attack"] == ["column first", "column gap"]
    assert [len(batch) for batch in memberships] == [30, 30, 30, 30]
    # Batches of one side alone would tell it: of 30 in an order at random, 15 are members, give or take 2.4.
    assert all(3 < sum(batch) < 27 for batch in memberships)
    table = path.with_name("own.audit.scores.csv")
    assert table.stat().st_mode & 0o777 == 0o600
    assert sum(line.startswith("members:") for line in table.read_text().splitlines()) == 60


def _not_of_it(network: nn.Module, records: list[Any]) -> Tensor:
    return torch.randn(len(records))


BAD: dict[str, tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = {
    "another": (_not_of_it, {}, InputError, "did not run the module that it was given"),
    "one number": (lambda n, r: negative_losses(n, r).mean(), {}, InputError, r"of the shape \(\) for"),
    "one a batch": (
        lambda n, r: negative_losses(n, r).mean().expand(len(r)),
        {"batch_size": 30},
        InputError,
        "all records of a batch",
    ),
    "not finite": (lambda n, r: negative_losses(n, r) / 0, {}, InputError, "not finite"),
    "text": (lambda n, r: (negative_losses(n, r), ["x"] * len(r))[1], {}, InputError, "one number for each"),
    "name": (lambda n, r: {"member": negative_losses(n, r)}, {}, InputError, "returned the name 'member'"),
    "batch": (negative_losses, {"batch_size": 0}, CommandError, "batch_size is 0"),
    "both": (negative_losses, {"members": [1]}, CommandError, "either split, or members and nonmembers"),
    "auc": (negative_losses, {"least_auc": 1.5}, CommandError, "least_auc is 1.5"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_function_that_scores_something_else_leaves_no_report(name: str, split: Path) -> None:
    """Where it was called, the log says that the audit was begun and why it ended."""
    model, place = private(split)
    before = {path.name for path in split.parent.iterdir()}
    scores, more, error, says = BAD[name]
    with pytest.raises(error, match=says) as raised:
        privctl.audit_module(model, place, scores, split=split, **more)
    log = place.with_name("own.audits.jsonl")
    assert {path.name for path in split.parent.iterdir()} - before == ({log.name} if error is InputError else set())
    if error is InputError:
        (audit,) = read_log(log).audits
        assert audit.end is not None
        assert audit.end.details["reason"] == str(raised.value)


@pytest.mark.parametrize("kind", ["tensors", "mappings", "arrays"])
def test_records_on_both_sides_are_refused(kind: str, split: Path) -> None:
    """They would hide what the network learned: each has one score, and is told on both sides."""
    model, path = private(split)
    every = [torch.randn(6) for _ in range(60)]
    of_kind: Callable[[Tensor], Any] = {
        "tensors": lambda each: (each.clone(), 1),
        "mappings": lambda each: {"label": "a", "inputs": each.tolist()},
        "arrays": lambda each: [None, each.numpy().copy()],
    }[kind]

    def scores(network: nn.Module, records: list[Any]) -> Tensor:
        output: Tensor = network(torch.randn(len(records), 6))[:, 0]
        return output

    sides = {"members": list(map(of_kind, every[:30])), "nonmembers": list(map(of_kind, every[28:]))}
    with pytest.raises(InputError, match="2 records are both a member and a non-member"):
        privctl.audit_module(model, path, scores, **sides)
    assert not path.with_name("own.audit.report.json").exists()
    sides["nonmembers"] = [object() for _ in range(30)]  # what cannot be compared is taken to be another
    privctl.audit_module(model, path, scores, **sides)


def test_a_module_that_is_not_what_was_saved_is_refused(split: Path) -> None:
    model, place = private(split)
    with pytest.raises(InputError, match="holds another 'inner.weight' than the model"):
        privctl.audit_module(Own(), place, negative_losses, split=split)
    with pytest.raises(InputError, match=r"holds 'inner\.bias', which the module does not have"):
        privctl.audit_module(_weights_alone(model), place, negative_losses, split=split)

    def learns(network: nn.Module, records: list[dict[str, Any]]) -> Tensor:
        network.outer.bias.add_(1)  # type: ignore[union-attr,operator]
        return negative_losses(network, records)

    with pytest.raises(InputError, match="holds another 'outer.bias' than the model"):
        privctl.audit_module(model, place, learns, split=split)


def _weights_alone(model: Own) -> nn.Module:
    smaller = Own()
    smaller.load_state_dict(model.state_dict())
    smaller.inner.bias = None  # type: ignore[assignment]
    return smaller


def test_paths_and_arguments_in_each_others_place_are_named(split: Path) -> None:
    model, members = Own(), split / "members.jsonl"
    for call, says in (
        (lambda: privctl.audit_module("own.safetensors", model, negative_losses, split=split), "in this order"),  # type: ignore[arg-type]
        (lambda: privctl.audit_module(model, "own.safetensors", None, split=split), "in this order"),  # type: ignore[arg-type]
    ):
        with pytest.raises(CommandError, match=says):
            call()
    model, place = private(split)
    with pytest.raises(CommandError, match="members is a path; read its records"):
        privctl.audit_module(model, place, negative_losses, members=str(members), nonmembers=[])


def of_users(folder: Path, noise_multiplier: float) -> tuple[Own, Path]:
    """A network trained privately on the members of a split of users, of three records each, and its split."""
    torch.manual_seed(1)
    data = folder / "users.jsonl"
    rows = [
        {"inputs": torch.randn(6).tolist(), "label": row % 2, "who": f"u{row // 3}", "n": row} for row in range(300)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    privctl.audit_split(data, output=folder / "split", group_by="who")
    inside = members(folder / "split")
    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = privctl.make_private(
        model, optimizer, DataLoader(TensorDataset(*tensors(inside)), batch_size=10),
        noise_multiplier=noise_multiplier, clip_norm=5.0, users=[each["who"] for each in inside], unit="who",
        records_per_draw=3,
    )  # fmt: skip
    for inputs, labels in training.loader:
        training.backward(lambda i=inputs, n=labels: F.cross_entropy(model(i), n, reduction="none"))  # type: ignore[misc]
        optimizer.step()
    save_file(model.state_dict(), folder / "own.safetensors")
    training.report(folder / "own.safetensors")
    return model, folder / "split"


def test_a_claim_about_users_is_tested_by_coins_of_users(tmp_path: Path) -> None:
    model, split = of_users(tmp_path, 20.0)
    path = tmp_path / "own.safetensors"
    report = privctl.audit_module(model, path, negative_losses, split=split)
    bounds = [item for item in report.evidence if item.quantity.startswith("epsilon")]
    assert [bound.quantity for bound in bounds] == [
        "epsilon of a group, column score", "epsilon of a group, column score-top"
    ]  # fmt: skip
    assert {bound.samples["canaries"] for bound in bounds} == {100}
    assert all(bound.lower is not None for bound in bounds)
    claims = [verdict for verdict in report.verdicts if ")-DP, " in verdict.subject]
    assert claims
    assert all(claim.outcome is not Outcome.REFUTED for claim in claims)
    for name in (path, tmp_path / "own.audit.report.json"):
        assert privctl.verify(name).exit_code is ExitCode.OK


@pytest.mark.forged("one entry is another")
def test_planted_an_entry_of_an_audit_by_users_that_is_another_fails_at_the_gate(tmp_path: Path) -> None:
    """The number of groups, the field, the split and a warning; the log is left out, which a policy may require."""
    model, split = of_users(tmp_path, 20.0)
    path, beside = tmp_path / "own.safetensors", tmp_path / "own.audit.report.json"
    privctl.audit_module(model, path, negative_losses, split=split)
    honest = replace(read_report(beside), log=None)
    asked = {**honest.parameters["asked"], "logged": False}
    honest = replace(honest, parameters={**honest.parameters, "asked": asked})
    asserted = [a.name for a in privctl.verify(path).report.guarantees[0].assumptions if a.state == "asserted"]

    def judged(warnings: tuple[str, ...] | None = None, **parameters: Any) -> GateOutcome:
        changed = honest.warnings if warnings is None else warnings
        write_report(beside, replace(honest, warnings=changed, parameters={**honest.parameters, **parameters}))
        policy: dict[str, Any] = {"max_epsilon": 1000, "required_steps": ["audit"]}
        return privctl.gate(path, **policy, accepted_assumptions=[*asserted, "scores of the model"]).outcome

    records = honest.parameters["grouped_records"]
    assert judged() is GateOutcome.PASS
    assert judged(split_groups=90) is GateOutcome.FAIL
    assert judged(group_by="n", asked={**asked, "group_by": "n"}) is GateOutcome.FAIL
    assert judged(grouped_records={**records, "members": records["members"] + 1}) is GateOutcome.FAIL
    assert judged(dtype="bfloat16") is GateOutcome.FAIL
    assert (
        judged(warnings=tuple(warning for warning in honest.warnings if "stronger" not in warning)) is GateOutcome.FAIL
    )


def test_planted_what_knows_the_users_refutes_the_claim_about_them(tmp_path: Path) -> None:
    model, split = of_users(tmp_path, 20.0)
    inside = {record["who"] for record in members(split)}

    def knows(network: nn.Module, records: list[dict[str, Any]]) -> Tensor:
        own_scores = torch.tensor([10.0 * (record["who"] in inside) for record in records])
        return own_scores + negative_losses(network, records)

    report = privctl.audit_module(model, tmp_path / "own.safetensors", knows, split=split)
    claims = [verdict for verdict in report.verdicts if ")-DP, " in verdict.subject]
    assert Outcome.REFUTED in [claim.outcome for claim in claims]
    assert privctl.gate(tmp_path / "own.safetensors", max_epsilon=100).outcome is GateOutcome.FAIL
