"""Whole audits of splits by user: what they certify of trained models, and that verify holds them to their coins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from audits.canaries.bounds import EITHER
from audits.membership.audit import MembershipAudit
from audits.membership.groups import highest, weighed
from audits.membership.request import MembershipRequest
from audits.scores.scorer import compute_scores, plan_scoring
from audits.statistics.max_t import max_t, rank_statistics
from privctl.cli import run
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from tests.audits.membership.test_groups import Users, nothing, p_values
from tests.audits.split.test_drawn_groups import half_drawn
from tests.audits.split.test_split import lines
from tests.audits.split.users import SIZES, drawn_users, made_again, split_at
from tests.audits.tiny import save_model, sentences
from verify.audits.asked import unanswered_claims
from verify.audits.split.drawn import check_split


def bounds(report: PrivacyReport) -> Iterator[float]:
    return (item.lower or 0.0 for item in report.evidence if item.method == EITHER)


def judged(path: Path, report: PrivacyReport) -> tuple[Outcome, str]:
    (found,) = check_split(path, report, ())
    return found.outcome, found.reason


def test_an_audit_of_users_counts_them_and_can_be_verified(audited_users: Path) -> None:
    report = read_report(audited_users)
    assert (report.parameters["group_by"], report.parameters["split_groups"]) == ("user", 45)
    epsilons = [item for item in report.evidence if item.method == EITHER]
    assert [item.quantity for item in epsilons] == ["epsilon of a group, loss", "epsilon of a group, loss-top"]
    assert {item.samples["canaries"] for item in epsilons} == {45}
    assert all(item.lower is not None for item in epsilons)
    shared = [item.what for item in report.omissions if "several groups of the split have" in item.reason]
    assert len(shared) == 2
    assert judged(audited_users, report) == (
        Outcome.CONSISTENT, "the coins of all 45 groups are those of the manifest's key, and none is split"
    )  # fmt: skip
    assert run(["verify", str(audited_users), "-q"]) == 0


def test_verify_sees_what_is_forged_of_a_split_of_users(audited_users: Path) -> None:
    report = read_report(audited_users)
    first = next(item for item in report.evidence if item.method == EITHER)
    fewer = replace(first, samples={**first.samples, "canaries": 44})
    smaller = replace(first, details={**first.details, "group_records": 3})
    for says, change in {
        "its split tossed coins for groups by 'user', and it judges records": {"group_by": None},
        "its split tossed coins for groups by 'user', and it judges groups by 'text'": {"group_by": "text"},
        "it states 44 groups, its manifest 45": {"split_groups": 44},
        "it states None groups": {"split_groups": None},
    }.items():
        forged = replace(report, parameters={**report.parameters, **change})
        assert judged(audited_users, forged)[0] is Outcome.REFUTED
        assert says in judged(audited_users, forged)[1]
    for says, item in {"does not count all 45 groups": fewer, "its groups have up to 20 records": smaller}.items():
        evidence = tuple(item if each is first else each for each in report.evidence)
        assert says in judged(audited_users, replace(report, evidence=evidence))[1]


@pytest.mark.parametrize("change", ["half drawn", "of records", "not at hand"])
def test_verify_looks_for_whole_groups(tmp_path: Path, audited_users: Path, change: str) -> None:
    """A report on a split that was changed, with a manifest that fits the files."""
    folder = drawn_users(tmp_path, 63, sentences(250, 3), records=45)
    if change == "half drawn":
        half_drawn(folder)
    elif change == "of records":
        made_again(folder, group_by=None, groups=None, included_groups=None)
    else:
        (folder / "train.jsonl").unlink()
    report = read_report(audited_users)
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {"split": "manifest.json", "members": "members.jsonl", "nonmembers": "nonmembers.jsonl"}
    inputs = tuple(of_file(item, folder / files[item.role]) for item in report.inputs if item.role in files)
    stated = {"split_commitment": manifest["commitment"], "split_records": manifest["records"]}
    forged = replace(report, inputs=inputs, parameters={**report.parameters, **stated})
    outcome, reason = judged(audited_users, forged)
    assert (outcome is Outcome.INCONCLUSIVE) is (change == "not at hand")
    assert (outcome is Outcome.REFUTED) is (change != "not at hand")
    assert {
        "half drawn": "and a group is drawn as a whole",
        "of records": "its split tossed coins for records, and it judges groups by 'user'",
        "not at hand": "train.jsonl is not at hand",
    }[change] in reason


def of_file(item: Any, file: Path) -> Any:
    from privctl.storage.digest import file_digest

    return replace(item, path=str(file), digest=file_digest(file), bytes=file.stat().st_size)


def audited(folder: Path, model: Users, seed: int) -> Any:
    """An audit of a split of 45 users by a model that finds some users easier than others."""
    source = np.random.default_rng(seed)
    folder.mkdir()
    texts = [" ".join(map(str, [1000 + i, *source.integers(20, 99, size=4)])) for i in range(45)]
    rows = [
        {"text": f"{texts[user]} {number}", "user": user} for user in range(45) for number in range(SIZES[user % 9])
    ]
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["audit", "split", str(folder / "d.jsonl"), "-o", str(folder / "s"), "--group-by", "user", "-q"]) == 0
    split = split_at(folder / "s")
    request = MembershipRequest(
        members=split.members, nonmembers=split.nonmembers, split=split.path, group_by="user", attacks=("loss", "min-k")
    )
    audit = MembershipAudit(model, request)
    model.known = {row.tobytes() for row, member in zip(audit.rows, audit._work.member, strict=True) if member}
    return audit.judge(compute_scores(plan_scoring(model, audit.rows)), 0.05)


def test_a_leak_of_users_is_certified(tmp_path: Path) -> None:
    found = audited(tmp_path / "a", Users(rule=nothing, leak=3.0), 0)
    assert max(item.lower or 0.0 for item in found.evidence if item.method == EITHER) > 1.5
    assert found.verdicts[0].outcome is Outcome.REFUTED
    assert all(item.lower is not None for item in found.evidence if item.method == EITHER)


@pytest.mark.slow
def test_nothing_is_certified_of_users_of_whom_there_is_nothing(tmp_path: Path) -> None:
    """Users differ by far more than their records do: where 2.5 % may err, more than 5 of 40 do once in 1000."""
    found = [audited(tmp_path / str(i), Users(rule=nothing, spread=2.0), i) for i in range(40)]
    certified = [any((i.lower or 0) > 0 for i in each.evidence if i.method == EITHER) for each in found]
    assert sum(certified) <= 5
    assert sum(min(p_values(each).values()) <= 0.025 for each in found) <= 5


def test_users_of_very_different_sizes_keep_the_level() -> None:
    """100 data sets of 45 users, coins tossed by user: where 5 % may reject, more than 12 do once in 700.

    Coins tossed for records, and judged by user with the side of a user's first record, are no such test: a user's
    records then lie on both sides, which an audit refuses.
    """
    random, rejected = np.random.default_rng(3), 0
    index = np.repeat(np.arange(45), [SIZES[user % 9] for user in range(45)])
    for seed in range(100):
        values = 2 * random.normal(size=45)[index] + random.normal(size=len(index))
        member = random.random(45) < 0.5
        tests = {name: rank_statistics(of(values, index), ()) for name, of in (("all", weighed), ("top", highest))}
        rejected += min(max_t(tests, member, seed, 0.05, count=99).p_values.values()) <= 0.05
    assert rejected <= 12


@pytest.mark.slow
def test_a_model_that_memorized_its_users_certifies_an_epsilon(tmp_path: Path) -> None:
    """Drawn by user, trained on the members, audited, verified; the model refutes a claim about users."""
    folder = drawn_users(tmp_path, 300, sentences(5000, 1))
    model, report = save_model(tmp_path / "model"), tmp_path / "r.report.json"
    words = ["--split", str(folder), "--claim", "1,1e-5", "--log", str(tmp_path / "log"), "-q", "--force"]
    assert run(["audit", "membership", str(model), "-o", str(report), *words]) == 0
    members = [json.loads(line)["text"] for line in lines(folder / "members.jsonl")]
    network, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = "</s>"
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for start in [*range(0, len(members), 16)] * 25:
        batch = tokenizer(members[start : start + 16], return_tensors="pt", padding=True)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        network(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(model)
    assert run(["audit", "membership", str(model), "-o", str(report), *words]) == 1
    assert max(bounds(read_report(report))) > 1.5
    assert run(["verify", str(report), "-q"]) == 0


@pytest.mark.slow
def test_private_training_holds_what_it_claims_of_users_or_of_records(tmp_path: Path) -> None:
    """Trained with users as examples its claim is judged as it stands; with records, that of 20 of them together."""
    folder = drawn_users(tmp_path, 63, sentences(250, 3))
    model = save_model(tmp_path / "model")
    budget = ["--epsilon", "3", "--delta", "1e-5", "--epochs", "1", "--batch-size", "8", "--device", "cpu", "-q"]
    found = {}
    for name, unit in (("users", ["--unit", "user"]), ("records", [])):
        trained, report = tmp_path / f"by-{name}", tmp_path / f"{name}.audit.json"
        data = ["--data", str(folder / "members.jsonl"), *unit, "-o", str(trained)]
        assert run(["retrain", "dp-sgd", str(model), *data, *budget]) == 0
        words = ["--split", str(folder), "--attack", "loss", "-o", str(report), "--log", str(tmp_path / "log")]
        assert run(["audit", "membership", str(trained), *words, "--device", "cpu", "-q"]) == 0
        assert run(["verify", str(report), "-q"]) == 0
        found[name] = read_report(report)
        own = [read_report(tmp_path / f"by-{name}.report.json")]
        assert not list(unanswered_claims(report, found[name], own))
        other = replace(own[0], parameters={**own[0].parameters, "unit": None if unit else "user"})
        assert any(
            "is not about the examples" in verdict.reason for verdict in unanswered_claims(report, found[name], [other])
        )
    subjects = {name: [verdict.subject for verdict in each.verdicts] for name, each in found.items()}
    assert any(subject.startswith("(2.999") and ", conditional in by-users" in subject for subject in subjects["users"])
    assert any(", 1)-DP, of 20 examples together by (2.999" in subject for subject in subjects["records"])
    assert any("up to 20 records of a user together" in subject for subject in subjects["records"])
    assert all(verdict.outcome is not Outcome.REFUTED for each in found.values() for verdict in each.verdicts)
