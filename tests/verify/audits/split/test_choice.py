"""A split of a part of the data: that the key chose the part, and not somebody who had seen the model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from audits.canaries.manifest import DataFile
from audits.split.draw import SplitRequest, draw_split
from audits.split.manifest import SplitManifest, Use, commitment_of, encode_manifest, is_member, read_manifest
from privctl.domain.report import Artifact
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from tests.gate.made import auc, audit
from verify.audits.split.drawn import check_split

_FILES = {"split": "manifest.json", "members": "members.jsonl", "nonmembers": "nonmembers.jsonl"}
_GROUPS = pytest.mark.parametrize("field", [None, "user"])


def record(text: str, user: int) -> str:
    return json.dumps({"text": text, "user": f"u{user}"})


def honest(folder: Path, field: str | None) -> Path:
    data = folder / "data.jsonl"
    data.write_text("".join(record(f"text {i}", i // 2) + "\n" for i in range(200)))
    draw_split(SplitRequest(data=data, folder=folder / "split", records=40, group_by=field))
    return folder / "split"


def written(path: Path, lines: list[str]) -> DataFile:
    path.write_text("".join(f"{line}\n" for line in lines))
    digest = file_digest(path)
    return DataFile(name=path.name, digest=digest, content=digest, records=len(lines))


def after_training(split: Path, field: str | None) -> None:
    """A new key; of what was trained on, whatever it calls members, and beside it other texts that it does not."""
    manifest, key = read_manifest(split / "manifest.json"), os.urandom(32)
    trained = (split / "train.jsonl").read_text().splitlines()
    others = [record(f"of another kind {i}", 1000 + i) for i in range(200)]

    def coin(line: str) -> bool:
        unit = line if field is None else json.loads(line)[field]
        return is_member(key, unit.encode(), Use.COIN if field is None else Use.GROUP_COIN)

    members, left = [line for line in trained if coin(line)], [line for line in others if not coin(line)]
    manifest = replace(
        manifest,
        key=key.hex(),
        records=len(members) + len(left),
        included=len(members),
        members=written(split / "members.jsonl", members),
        nonmembers=written(split / "nonmembers.jsonl", left),
    )
    if field is not None:
        names = [{json.loads(line)[field] for line in side} for side in (members, left)]
        manifest = replace(manifest, groups=sum(map(len, names)), included_groups=len(names[0]))
    kept(split, manifest)


def kept(split: Path, manifest: SplitManifest) -> None:
    (split / "manifest.json").write_bytes(encode_manifest(replace(manifest, commitment=commitment_of(manifest))))


def judged(split: Path, field: str | None) -> tuple[Outcome, str]:
    manifest = read_manifest(split / "manifest.json")
    inputs = [
        Artifact(role=role, path=f"split/{name}", digest=file_digest(split / name), bytes=(split / name).stat().st_size)
        for role, name in _FILES.items()
    ]
    stated = {"split_commitment": manifest.commitment, "split_records": manifest.records}
    stated |= {} if field is None else {"group_by": field, "split_groups": manifest.groups}
    looked = audit(split.parent / "a.json", auc(0.5, 0.4, 0.55), inputs=inputs, parameters=stated)
    (found,) = check_split(looked, read_report(looked), ())
    return found.outcome, found.reason


@_GROUPS
def test_what_the_key_chose_passes(tmp_path: Path, field: str | None) -> None:
    assert judged(honest(tmp_path, field), field)[0] is Outcome.CONSISTENT


@_GROUPS
def test_members_picked_after_the_training_are_refuted(tmp_path: Path, field: str | None) -> None:
    split = honest(tmp_path, field)
    after_training(split, field)
    outcome, reason = judged(split, field)
    assert outcome is Outcome.REFUTED
    assert "without a coin that the manifest's key puts before some that have one" in reason


def with_a_nonmember(split: Path) -> None:
    lines = (split / "train.jsonl").read_text().splitlines()
    lines.append((split / "nonmembers.jsonl").read_text().splitlines()[0])
    manifest = read_manifest(split / "manifest.json")
    kept(split, replace(manifest, train=written(split / "train.jsonl", lines)))


@pytest.mark.parametrize(
    ("change", "outcome", "word"),
    [
        (with_a_nonmember, Outcome.REFUTED, "does not hold the members as they were drawn"),
        (lambda split: (split / "train.jsonl").unlink(), Outcome.INCONCLUSIVE, "which shows who got coins"),
    ],
)
def test_what_was_trained_on_is_needed_and_fits(
    tmp_path: Path, change: Callable[[Path], object], outcome: Outcome, word: str
) -> None:
    split = honest(tmp_path, None)
    change(split)
    found, reason = judged(split, None)
    assert found is outcome
    assert word in reason
