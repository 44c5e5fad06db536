"""Members that were drawn from the training data, as a gate finds them in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from audits.split.manifest import commitment_of, encode_manifest, read_manifest
from privctl.domain.gate import GateOutcome
from privctl.domain.report import Artifact
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from tests.audits.split.test_split import drawn
from tests.audits.tiny import sentences
from tests.gate.made import INCONCLUSIVE, PASS, PROVED, auc, audit, judged, making, only, weights
from tests.gate.test_ci import bare
from verify.audits.split.drawn import drawn_from

SPLIT_FILES = {"split": "manifest.json", "members": "members.jsonl", "nonmembers": "nonmembers.jsonl"}


def other_members(split: Path) -> None:
    """The members' file holds records that the model never saw, and the manifest says so."""
    (split / "members.jsonl").write_text("".join(f'{{"text": "unseen {i}"}}\n' for i in range(20)))
    again(split, members="members.jsonl")


def trained_on_all(split: Path) -> None:
    with (split / "train.jsonl").open("ab") as file:
        file.write((split / "nonmembers.jsonl").read_bytes())
    again(split, train="train.jsonl")


def again(split: Path, **changed: str) -> None:
    """The manifest once more, for files that were ``changed``."""
    manifest = read_manifest(split / "manifest.json")
    files = {role: replace(getattr(manifest, role), digest=file_digest(split / n)) for role, n in changed.items()}
    manifest = replace(manifest, **files)
    (split / "manifest.json").write_bytes(encode_manifest(replace(manifest, commitment=commitment_of(manifest))))


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda split: None, PASS),
        (other_members, INCONCLUSIVE),
        (trained_on_all, INCONCLUSIVE),
        (lambda split: (split / "train.jsonl").unlink(), INCONCLUSIVE),
        (lambda split: (split / "train.jsonl").write_bytes(b"{}"), INCONCLUSIVE),
    ],
)
def test_members_that_were_drawn_from_the_training_data_are_of_it(
    tmp_path: Path, root: Path, change: Callable[[Path], object], outcome: GateOutcome
) -> None:
    """A gate looks for each member in the file that the model's report names, and believes no manifest."""
    split = drawn(tmp_path, sentences(100, 3), records=40)
    train = split / "train.jsonl"
    trained = Artifact(role="data", path="split/train.jsonl", digest=file_digest(train), bytes=train.stat().st_size)
    change(split)
    if change is trained_on_all:
        trained = replace(trained, digest=file_digest(train), bytes=train.stat().st_size)
    manifest = read_manifest(split / "manifest.json")
    report = making(
        tmp_path / "m.json",
        PROVED,
        inputs=[trained],
    )
    inputs = [
        weights("m"),
        *(
            Artifact(
                role=role, path=f"split/{name}", digest=file_digest(split / name), bytes=(split / name).stat().st_size
            )
            for role, name in SPLIT_FILES.items()
        ),
    ]
    stated = {"split_commitment": manifest.commitment, "split_records": manifest.records}
    looked = audit(tmp_path / "a.json", auc(0.5, 0.4, 0.55), inputs=inputs, parameters=stated)
    assert only(judged(report, looked, max_auc="0.6"), "max_auc").outcome is outcome
    if outcome is PASS:  # without numpy too, as in a CI that computes nothing again
        gate = ["gate", str(report), str(looked), "--max-auc", "0.6", "--recompute", "false", "--json"]
        ((code, output),) = bare(tmp_path, root, "", gate)
        found = [finding["outcome"] for finding in json.loads(output)["findings"] if finding["rule"] == "max_auc"]
        assert (code in (0, 1), found) == (True, ["pass"]), output


@pytest.mark.parametrize(("sides", "found"), [("drawn by privctl", True), (None, False)])
def test_training_text_of_an_extraction_audit_is_looked_for_too(tmp_path: Path, sides: str | None, found: bool) -> None:
    split = drawn(tmp_path, sentences(100, 3), records=40)
    roles = {"split": "manifest.json", "train": "members.jsonl", "heldout": "nonmembers.jsonl"}
    inputs = [
        Artifact(role=role, path=f"split/{name}", digest=file_digest(split / name), bytes=(split / name).stat().st_size)
        for role, name in roles.items()
    ]
    stated = {
        "split_commitment": read_manifest(split / "manifest.json").commitment,
        "split_records": 40,
        "extraction": {} if sides is None else {"sides": sides},
    }
    looked = audit(tmp_path / "a.json", inputs=inputs, parameters=stated)
    assert drawn_from(looked, read_report(looked)) == (file_digest(split / "train.jsonl") if found else "")
