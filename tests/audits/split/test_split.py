"""Splits that privctl draws: who is a member is a matter of coins, and an audit of them need not doubt its data."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from transformers import AutoModelForCausalLM, AutoTokenizer

from audits.canaries.bounds import EITHER
from audits.canaries.design import canaries_to_refute, power_ceiling, register
from audits.membership.baseline import BLIND, LENGTH, Baseline
from audits.membership.verdict import verdict
from audits.split.draw import SplitRequest, draw_split
from audits.split.drawn import read_split
from audits.split.manifest import commitment_of, encode_manifest, read_manifest
from audits.split.power import USUAL_ATTACKS
from audits.split.premises import of_training, premises
from privctl.cli import run
from privctl.domain.errors import CommandError, FileSystemError, InputError
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import read_report
from privctl.storage.atomic import PendingFile
from privctl.storage.digest import file_digest, tag
from tests.audits.membership.test_verdict import evidence
from tests.audits.tiny import save_model, sentences, write_jsonl
from verify.audits.canaries.guesses import check_guesses
from verify.audits.consistency import faults
from verify.audits.split.drawn import check_split

TEXTS = sentences(400, 1)


def drawn(tmp_path: Path, texts: list[str] = TEXTS, **options: Any) -> Path:
    data = write_jsonl(tmp_path / "data.jsonl", texts)
    draw_split(SplitRequest(data=data, folder=tmp_path / "split", **options))
    return tmp_path / "split"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_each_record_is_on_one_side_by_a_fair_coin(tmp_path: Path) -> None:
    split = drawn(tmp_path)
    members, others = lines(split / "members.jsonl"), lines(split / "nonmembers.jsonl")
    assert sorted(members + others) == sorted(lines(tmp_path / "data.jsonl"))
    assert 150 < len(members) < 250  # five standard deviations
    assert {stat.S_IMODE(path.stat().st_mode) for path in split.iterdir()} == {0o600}
    manifest = read_manifest(split / "manifest.json")
    assert (manifest.records, manifest.included) == (len(set(members + others)), len(set(members)))
    assert manifest.source.digest == file_digest(tmp_path / "data.jsonl")
    again = draw_split(SplitRequest(data=tmp_path / "data.jsonl", folder=split, force=True))
    assert again.key != manifest.key
    assert set(lines(split / "members.jsonl")) != set(members)
    with pytest.raises(CommandError, match=r"members\.jsonl exists"):
        draw_split(SplitRequest(data=tmp_path / "data.jsonl", folder=split))


def test_what_a_split_can_refute_is_said_before_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", [*TEXTS[:300], TEXTS[0]])
    call = ["audit", "split", str(data), "-o", str(tmp_path / "s"), "--force"]
    assert run([*call, "--to-see", "4", "-q"]) == 0
    stdout = capfd.readouterr().out
    assert "whether 299 records with a coin of their own can refute a claim of epsilon 4 at delta 1e-05" in stdout
    assert "by the 6 attacks on a language model they cannot" in stdout
    assert "by one attack alone (--attack) they can," in stdout
    assert run([*call, "--to-see", "4", "--json", "-q"]) == 0
    all_six, one = json.loads(capfd.readouterr().out)["power"]
    assert (all_six["attacks"], one["attacks"], one["coins"]) == (6, 1, 299)
    # What an audit may certify with every guess right: as much as its bounds do at their share of the error.
    for count, can in ((all_six["needed"], True), (all_six["needed"] - 1, False)):
        assert (power_ceiling(register([1] * count), 1e-5, 0.05 / 2 / 6) > 4) is can
    assert one["needed"] == canaries_to_refute(4, 1e-5, 0.05) < 299 < all_six["needed"]
    assert run([*call, "--to-see", "0"]) == 2


def test_a_delta_without_a_claim_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", TEXTS[:20])
    assert run(["audit", "split", str(data), "-o", str(tmp_path / "s"), "--delta", "1e-6"]) == 2
    assert "add --to-see with its epsilon, or remove --delta" in capfd.readouterr().err
    assert not (tmp_path / "s").exists()


def test_copies_of_a_record_share_its_coin(tmp_path: Path) -> None:
    split = drawn(tmp_path, [*TEXTS[:40], *TEXTS[:40], *TEXTS[:20]])
    members, others = lines(split / "members.jsonl"), lines(split / "nonmembers.jsonl")
    assert not set(members) & set(others)
    assert len(members) + len(others) == 100
    of_both = (("members", members), ("nonmembers", others))
    once = {(side == "members", n) for side, each in of_both for n, x in enumerate(each, 1) if each.count(x) == 1}
    assert once == set(read_split(split / "manifest.json").coins)
    assert len(once) == 0


def test_the_records_not_drawn_are_trained_on(tmp_path: Path) -> None:
    split = drawn(tmp_path, records=100)
    members, others = lines(split / "members.jsonl"), lines(split / "nonmembers.jsonl")
    train = lines(split / "train.jsonl")
    assert len(members) + len(others) == 100
    assert set(members) <= set(train)
    assert not set(others) & set(train)
    assert train == [line for line in lines(tmp_path / "data.jsonl") if line not in set(others)]
    assert read_split(split / "manifest.json").trained_on.digest == file_digest(split / "train.jsonl")
    with pytest.raises(CommandError, match="holds 400 different records; give fewer"):
        drawn(tmp_path, records=401, force=True)


def test_tables_keep_all_their_fields(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,label\n" + "".join(f"words {i},{i % 2}\n" for i in range(40)))
    draw_split(SplitRequest(data=tmp_path / "d.csv", folder=tmp_path / "split"))
    rows = [json.loads(line) for name in ("members", "nonmembers") for line in lines(tmp_path / f"split/{name}.jsonl")]
    assert sorted(row["text"] for row in rows) == sorted(f"words {i}" for i in range(40))
    assert {str(row["label"]) for row in rows} == {"0", "1"}


def test_bad_requests_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_jsonl(tmp_path / "one.jsonl", ["alone"])
    for words, code, says in (
        ([str(data), "-o", str(tmp_path / "s")], 3, "so few records that all coins fell alike"),
        ([str(data), "-o", str(tmp_path / "none" / "s")], 2, "is not a folder"),
        ([str(data), "-o", str(data)], 2, "is a file; give a folder"),
        ([str(tmp_path / "no.jsonl"), "-o", str(tmp_path / "s")], 3, "no.jsonl"),
    ):
        assert run(["audit", "split", *words]) == code
        assert says in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.jsonl"]


def test_a_split_that_does_not_fit_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FileSystemError("members.jsonl does not fit")

    data = write_jsonl(tmp_path / "d.jsonl", sentences(60, 1))
    monkeypatch.setattr(PendingFile, "write_at", full)
    (tmp_path / "there").mkdir()
    for name in ("new", "there"):
        with pytest.raises(FileSystemError):
            draw_split(SplitRequest(data=data, folder=tmp_path / name))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["d.jsonl", "there"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("images.npz", b"PK\x03\x04\n\x93NUMPY\n\xff\n\x00\n", "images.npz holds images, which are not split"),
        ("pipe", b"PK\x03\x04\n\x93NUMPY\n\xff\n\x00\n", "pipe line 1"),
        ("notes.jsonl", b"one\ntwo\nthree\nfour\n", "notes.jsonl line 1 is not valid JSON"),
        ("list.jsonl", b'["a"]\n["b"]\n["c"]\n["d"]\n', "list.jsonl line 1 is a list"),
    ],
)
def test_what_is_no_record_is_not_split(
    name: str, content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of an archive of images came out as members, and the training that was to follow refused them."""
    (tmp_path / name).write_bytes(content)
    assert run(["audit", "split", str(tmp_path / name), "-o", str(tmp_path / "s")]) == 3
    assert says in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def moved(split: Path) -> None:
    """A line goes from one side to the other, and the manifest is made to fit."""
    lines_of = {name: lines(split / f"{name}.jsonl") for name in ("members", "nonmembers")}
    lines_of["nonmembers"].append(lines_of["members"].pop())
    manifest = read_manifest(split / "manifest.json")
    for name, each in lines_of.items():
        (split / f"{name}.jsonl").write_text("\n".join(each) + "\n")
        digest = file_digest(split / f"{name}.jsonl")
        manifest = replace(manifest, **{name: replace(manifest.sides[name], digest=digest, content=digest)})
    manifest = replace(manifest, included=manifest.included - 1)
    (split / "manifest.json").write_bytes(encode_manifest(replace(manifest, commitment=commitment_of(manifest))))


def edited(split: Path) -> None:
    text = (split / "manifest.json").read_text()
    (split / "manifest.json").write_text(text.replace('"data.jsonl"', '"other.jsonl"'))


def appended(split: Path) -> None:
    with (split / "members.jsonl").open("a") as file:
        file.write('{"text": "w1"}\n')


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (moved, "is on the other side than its coin"),
        (edited, "was changed after the split was drawn"),
        (appended, "is not the file that was drawn, by its digest"),
        (lambda split: (split / "members.jsonl").unlink(), "is missing"),
    ],
)
def test_a_split_that_was_changed_is_not_audited(tmp_path: Path, change: Callable[[Path], None], says: str) -> None:
    split = drawn(tmp_path)
    read_split(split / "manifest.json")
    change(split)
    with pytest.raises(InputError, match=says):
        read_split(split / "manifest.json")


def test_baselines_silence_no_finding_of_a_drawn_split() -> None:
    confounded = Baseline(evidence=(evidence(BLIND, 0.6), evidence(LENGTH, 0.6)), scores=(), p_value=0.001)
    attacks = [evidence("loss", 0.6)]
    assert verdict(attacks, confounded).outcome is Outcome.INCONCLUSIVE
    found = verdict(attacks, confounded, drawn=True)
    assert found.outcome is Outcome.REFUTED
    assert found.reason.endswith("so the two files do not differ by themselves")
    assert verdict([evidence("loss", 0.45)], confounded, drawn=True).outcome is Outcome.CONSISTENT


def test_finding_nothing_needs_the_model_of_the_split(tmp_path: Path) -> None:
    split = read_split(drawn(tmp_path) / "manifest.json")
    nothing = Verdict(subject="s", outcome=Outcome.CONSISTENT, reason="")
    own = file_digest(split.members)
    for trained_on, outcome, says in (
        ((own,), Outcome.CONSISTENT, "is what its training report says"),
        (None, Outcome.CONSISTENT, "is what the caller asserts"),
        (("blake3:0",), Outcome.INCONCLUSIVE, "is contradicted by its training report"),
        ((own, "blake3:0"), Outcome.INCONCLUSIVE, "is contradicted by its training report"),
    ):
        assert of_training(nothing, split, trained_on).outcome is outcome
        assert says in premises(split, trained_on)[1]


def judged(path: Path, report: PrivacyReport) -> tuple[Outcome, str]:
    (found,) = check_split(path, report, ())
    return found.outcome, found.reason


def test_an_audit_of_a_split_can_be_verified(audited: Path) -> None:
    report = read_report(audited)
    assert report.parameters["split_records"] == len(set(sentences(60, 3)))
    assert any("privctl drew the split" in line for line in report.warnings)
    assert judged(audited, report)[0] is Outcome.CONSISTENT
    assert not list(faults(report))
    bounds = [item for item in report.evidence if item.method == EITHER]
    assert {item.quantity for item in bounds} > {"epsilon, loss", "epsilon, zlib"}
    # The sixth, quantile, learns from 50 non-members, which these are not.
    assert len({item.quantity for item in bounds}) == USUAL_ATTACKS - 1
    assert {item.samples["canaries"] for item in bounds} == {report.parameters["split_records"]}
    assert not list(check_guesses(audited, report, ()))
    kept = tuple(item for item in report.evidence if item.quantity != "epsilon, loss")
    (found,) = check_guesses(audited, replace(report, evidence=kept), ())
    assert (found.outcome, "no bound is stated from the scores of 'loss'" in found.reason) == (Outcome.REFUTED, True)
    fewer = tuple(
        replace(item, samples={**item.samples, "canaries": 50}) if item == bounds[0] else item
        for item in report.evidence
    )
    assert judged(audited, replace(report, evidence=fewer))[0] is Outcome.REFUTED
    parameters = {**report.parameters, "split_commitment": tag(blake3(b""))}
    assert judged(audited, replace(report, parameters=parameters)) == (
        Outcome.REFUTED, "its manifest does not give the commitment that the audit states",
    )  # fmt: skip
    less = tuple(item for item in report.inputs if item.role != "split")
    assert judged(audited, replace(report, inputs=less))[0] is Outcome.INCONCLUSIVE
    others = tuple(replace(item, digest=tag(blake3(b""))) if item.role == "members" else item for item in report.inputs)
    assert judged(audited, replace(report, inputs=others))[0] is Outcome.REFUTED
    assert not list(check_split(audited, replace(report, parameters={"task": "causal-lm"}), ()))


def test_verify_throws_the_coins_again(tmp_path: Path, audited: Path) -> None:
    split = drawn(tmp_path)
    moved(split)
    report = read_report(audited)
    manifest = read_manifest(split / "manifest.json")
    inputs = tuple(
        replace(item, path=f"split/{name}", digest=file_digest(split / name), bytes=(split / name).stat().st_size)
        for item in report.inputs
        if (name := {"split": "manifest.json"}.get(item.role, f"{item.role}.jsonl")) and (split / name).exists()
    )
    stated = {"split_commitment": manifest.commitment, "split_records": manifest.records}
    forged = replace(report, inputs=inputs, parameters={**report.parameters, **stated})
    assert judged(tmp_path / "r.report.json", forged) == (
        Outcome.REFUTED, "some of its nonmembers are on the other side than their coins",
    )  # fmt: skip


def test_a_split_brings_its_own_files(tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = drawn(tmp_path, sentences(20, 3))
    members = ["--members", str(split / "members.jsonl")]
    assert run(["audit", str(llama), "--split", str(split), *members, "-o", str(tmp_path / "r.json")]) == 2
    assert "--split brings the members and non-members" in capsys.readouterr().err
    assert run(["audit", "membership", str(llama), "-o", str(tmp_path / "r.json")]) == 2


@pytest.mark.slow
def test_a_model_that_memorized_its_members_refutes_its_claim(tmp_path: Path) -> None:
    """Whole: drawn, trained on the members, audited, verified; an untrained model refutes nothing."""
    texts = sentences(600, 1)
    model, split = save_model(tmp_path / "model"), drawn(tmp_path, texts)
    words = ["--split", str(split), "--claim", "1,1e-5", "--log", str(tmp_path / "log"), "-q", "--force"]
    report = tmp_path / "r.report.json"
    assert run(["audit", "membership", str(model), "-o", str(report), *words]) == 0
    members = [json.loads(line)["text"] for line in (split / "members.jsonl").open()]
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
    found = read_report(report)
    assert max(item.lower or 0 for item in found.evidence if item.method == EITHER) > 3
    assert run(["verify", str(report), "-q"]) == 0
