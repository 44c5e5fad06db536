"""Scores of records as Parquet: what processes write apart is judged as what one of them writes."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audits.model_scorer import ModelScorer
from audits.record_scores.audit import run_record_scores
from audits.record_scores.parts import ScoredWork, ScorePart, part_path, read_parts, whole_name, write_part
from audits.record_scores.scoring import ScoringRequest, score_records
from audits.record_scores.table import ScoreColumns, read_record_scores
from audits.scores.table import Skip
from privctl.cli import run
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.progress import unseen
from privctl.parallel import Workers
from privctl.reports.files import read_report
from tests.audits.tiny import WORDS
from tests.forked import Forked

WORK = ScoredWork(
    model="blake3:1", reference=None, members="blake3:2", nonmembers="blake3:3", attacks=("loss", "zlib"),
    settings={"task": "causal-lm"}, versions={"privctl": "1"},
)  # fmt: skip


def parts_of(count: int, work: ScoredWork = WORK, records: int = 90, shift: float = 2.0) -> list[ScorePart]:
    """The same records in ``count`` parts."""
    rng = np.random.default_rng(5)
    member = np.arange(records) % 2 == 0
    scores = {name: rng.normal(size=records) + shift * member for name in work.attacks}
    ids = [f"{'members' if m else 'nonmembers'}:{i}" for i, m in enumerate(member)]
    return [
        ScorePart(
            work=work, rank=rank, size=count, ids=ids[rank::count], member=member[rank::count],
            tokens=np.ones(len(ids[rank::count]), np.int64),
            scores={name: values[rank::count] for name, values in scores.items()},
            left_out={(True, Skip.DUPLICATE): 2} if rank == 0 else {(False, Skip.NOT_FINITE): 1},
        )
        for rank in range(count)
    ]  # fmt: skip


def written(folder: Path, parts: Sequence[ScorePart], name: str = "s.parquet") -> list[Path]:
    paths = [part_path(folder / name, part.rank, part.size) for part in parts]
    for path, part in zip(paths, parts, strict=True):
        write_part(path, part, replace=True)
    return paths


def test_parts_are_judged_as_one_file(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    (alone,) = written(tmp_path, parts_of(1))
    once = run_record_scores([alone], report, columns=ScoreColumns())
    assert once.parameters["attack"] == ["column loss", "column zlib"]
    for count in (2, 7):
        paths = written(tmp_path, parts_of(count))
        assert paths[1].name == f"s-00001-of-0000{count}.parquet"
        assert whole_name(paths[1]) == alone
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
        found = run_record_scores(paths[::-1], report, columns=ScoreColumns())
        assert (found.evidence, found.verdicts) == (once.evidence, once.verdicts)
        assert {(o.what, o.reason) for o in found.omissions[1:]} == {
            ("2 members", Skip.DUPLICATE.reason),
            (f"{count - 1} nonmember{'s' if count > 2 else ''}", Skip.NOT_FINITE.reason),
        }
    chosen = run_record_scores([alone], report, columns=ScoreColumns(scores=("zlib",)))
    assert chosen.parameters["attack"] == ["column zlib"]


@pytest.mark.parametrize("names", [{"member": "loss"}, {"record": "loss"}])
def test_an_attack_that_the_file_names_has_no_other_use(tmp_path: Path, names: dict[str, str]) -> None:
    with pytest.raises(CommandError, match=r"the columns .*loss.* are not all different"):
        read_record_scores(written(tmp_path, parts_of(1)), ScoreColumns(**names))


def test_parts_that_are_not_all_of_one_audit_are_refused(tmp_path: Path) -> None:
    first, second = written(tmp_path, parts_of(2))

    def refused(paths: Sequence[Path], says: str) -> None:
        with pytest.raises(InputError, match=says):
            read_parts(paths, "id", "member", ("loss",))

    read_parts([first, second], "id", "member", ("loss",))
    refused([first], "lacks part 2 of 2; give all parts")
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(first.read_bytes())
    refused([first, copy, second], "copy.parquet and .* are both part 1 of 2")
    (_, other) = written(tmp_path, parts_of(2, replace(WORK, model="blake3:9")), "other.parquet")
    refused([first, other], "different audits, as their 'model' differ")
    three = written(tmp_path, parts_of(3))
    refused([first, three[1]], "is one of 3 parts and .* one of 2")
    plain = tmp_path / "plain.parquet"
    pq.write_table(pq.read_table(second).replace_schema_metadata({}), plain)
    refused([first, plain], "are not both of privctl")


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"part": [0, 10**15]}, "lacks part 2 of 1000000000000000"),
        ({"part": [0, 1.5]}, "what this version cannot read"),
        ({"part": [0.0, 1]}, "what this version cannot read"),
        ({"left_out": [[True, 1, 0.5]]}, "what this version cannot read"),
        ({"format": 1}, "what this version cannot read"),
        ({"format": 2, "reference": "blake3:4"}, "what this version cannot read; score the records again"),
    ],
)
def test_a_forged_part_is_refused_whatever_it_claims(claims: dict[str, Any], says: str, tmp_path: Path) -> None:
    (path,) = written(tmp_path, parts_of(1))
    table = pq.read_table(path)
    note = json.loads(table.schema.metadata[b"privctl.scores"]) | claims
    pq.write_table(table.replace_schema_metadata({b"privctl.scores": json.dumps(note).encode()}), path)
    with pytest.raises(InputError, match=says):
        read_parts([path], "id", "member", ("loss",))


def test_scores_without_a_reference_model_are_the_same_as_before(tmp_path: Path) -> None:
    (path,) = written(tmp_path, parts_of(1))
    table = pq.read_table(path)
    note = json.loads(table.schema.metadata[b"privctl.scores"])
    assert (note["format"], note["reference"]) == (3, None)
    older = json.dumps(note | {"format": 2}).encode()
    pq.write_table(table.replace_schema_metadata({b"privctl.scores": older}), tmp_path / "older.parquet")
    found, kept = (read_parts([each], "id", "member", ("loss",)) for each in (path, tmp_path / "older.parquet"))
    assert kept.scores["loss"].tolist() == found.scores["loss"].tolist()


def test_parquet_of_other_programs_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    member = np.arange(60) % 2
    for i in range(2):
        half = slice(30 * i, 30 * i + 30)
        table = pa.table({"name": np.arange(60)[half], "in": member[half], "p": (rng.normal(size=60) + member)[half]})
        pq.write_table(table, tmp_path / f"x{i}.parquet")
    call = ["audit", "scores", str(tmp_path / "x*.parquet"), "--score-column", "p", "--id-column", "name"]
    assert run([*call, "--member-column", "in"]) == 0
    report = read_report(tmp_path / "x0.audit.report.json")
    assert [Path(item.path).name for item in report.inputs] == ["x0.parquet", "x1.parquet"]
    assert report.evidence[0].samples == {"members": 30, "nonmembers": 30}
    assert run([*call, "-f"]) == 3
    assert "has no column 'member'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"id": ["a", "b", "a", "c"]}, "scores the record 'a' twice"),
        ({"id": ["a", None, "b", "c"]}, "has rows without 'id'"),
        ({"member": [1, 0, 2, 0]}, "neither 1 nor 0"),
        ({"member": [1, 0, None, 0]}, "neither 1 nor 0"),
        ({"score": [1.0, float("nan"), 1.0, 2.0]}, "has nan as score; expected a finite number"),
        ({"score": ["1", "2", "3", "4"]}, "expected a finite number"),
        ({"member": [1, 1, 1, 0]}, "has 1 non-member; at least 2 of each side"),
    ],
)
def test_parquet_that_says_something_else_is_refused(
    columns: dict[str, list[object]], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.parquet"
    sound = {"id": ["a", "b", "c", "d"], "member": [1, 0, 1, 0], "score": [1.0, 2.0, 3.0, 4.0]}
    pq.write_table(pa.table({**sound, **columns}), path)
    with pytest.raises(InputError, match=says):
        read_record_scores([path], ScoreColumns())


@pytest.fixture
def scoring(llama: Path, tmp_path: Path) -> Callable[..., ScoringRequest]:
    rng = random.Random(1)
    for name in ("members", "nonmembers"):
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 20))) for _ in range(20)]
        lines = [json.dumps({"text": text}) for text in (*texts, texts[0], "w1 w2")]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return lambda **more: ScoringRequest(
        model=llama, members=tmp_path / "members.jsonl", nonmembers=tmp_path / "nonmembers.jsonl",
        output=tmp_path / "s.parquet", device="cpu", **more,
    )  # fmt: skip


def test_shares_have_the_scores_that_the_audit_has(tmp_path: Path, scoring: Callable[..., ScoringRequest]) -> None:
    request = scoring()
    alone, count = score_records(request, unseen)
    parts = [score_records(request, unseen, Workers(rank, 3)) for rank in range(3)]
    assert sum(size for _, size in parts) == count == 38
    assert max(size for _, size in parts) == 13
    names = ("loss", "zlib", "min-k", "min-k++", "min-k++-all")
    once = read_parts([alone], "id", "member", names)
    found = read_parts([path for path, _ in parts], "id", "member", names)
    assert (found.member == once.member).all()
    left_out = {(side, skip): n for side in (True, False) for skip, n in ((Skip.REPEATED, 2), (Skip.IN_BOTH, 1))}
    assert found.left_out == once.left_out == left_out
    for name in names:
        np.testing.assert_allclose(found.scores[name], once.scores[name], rtol=1e-4, atol=1e-5)
    files = ["--members", str(request.members), "--nonmembers", str(request.nonmembers)]
    attacks = [word for name in names for word in ("--attack", name)]
    output = tmp_path / "audit.report.json"
    assert run(["audit", "membership", str(request.model), *files, *attacks, "-o", str(output), "--device", "cpu"]) == 0
    whole = {e.method: e for e in read_report(output).evidence if e.quantity == "AUC"}
    merged = run_record_scores([path for path, _ in parts], tmp_path / "r.json", columns=ScoreColumns())
    assert {o.what for o in merged.omissions[1:]} == {
        o.what for o in read_report(output).omissions if "member" in o.what
    }
    for item in merged.evidence:
        if item.quantity == "AUC":
            assert item.estimate == pytest.approx(whole[item.method.removeprefix("column ")].estimate, abs=3e-3)
            assert item.samples == whole[item.method.removeprefix("column ")].samples


def test_no_file_has_scores_of_tokens(scoring: Callable[..., ScoringRequest]) -> None:
    path, count = score_records(scoring(attacks=("loss",)), unseen)
    table = pq.read_table(path)
    assert table.column_names == ["id", "member", "tokens", "loss"]
    assert table.num_rows == count < sum(table["tokens"].to_pylist())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(CommandError, match="exists"):
        score_records(scoring(), unseen)


@pytest.mark.parametrize("change", ["members", "model", "time", ""])
def test_files_that_change_while_records_are_scored_are_not_reported(
    scoring: Callable[..., ScoringRequest],
    tmp_path: Path,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    request, score = scoring(attacks=("loss",)), ModelScorer.score
    request = replace(request, model=Path(shutil.copytree(request.model, tmp_path / "own")))
    weights = request.model / "model.safetensors"

    def replaced(self: ModelScorer, *args: Any, **more: Any) -> Any:
        found = score(self, *args, **more)
        if change == "members":
            request.members.write_bytes(request.members.read_bytes() + b"\n" + b'{"text": "w3 w4"}')
        elif change == "model":
            weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
            os.utime(weights, (1, 1))
        elif change == "time":
            os.utime(weights, (1, 1))
        return found

    changes = change in ("members", "model")
    message = (
        "members.jsonl was changed while it was read" if change == "members" else "model.safetensors was changed or"
    )
    monkeypatch.setattr(ModelScorer, "score", replaced)
    files = ["--members", str(request.members), "--nonmembers", str(request.nonmembers), "--attack", "loss"]
    report = tmp_path / "a.report.json"
    asked = ["audit", "membership", str(request.model), *files, "-o", str(report), "--device", "cpu", "-q"]
    assert run(asked) == (ExitCode.BAD_INPUT if changes else ExitCode.OK)
    assert report.exists() is not changes
    assert (message in capfd.readouterr().err) is changes
    os.utime(weights, (2, 2))
    if changes:
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x02")
        with pytest.raises(InputError, match=message):
            score_records(request, unseen)
    else:
        score_records(request, unseen)
    assert request.output.exists() is not changes


def test_what_cannot_be_scored_apart_is_refused(scoring: Callable[..., ScoringRequest], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--attack quantile scores records by what others score"):
        scoring(attacks=("quantile",))
    with pytest.raises(CommandError, match="--attack reference cannot be run: it needs a model given by --reference"):
        score_records(scoring(attacks=("reference",)), unseen)
    with pytest.raises(InputError, match="hold no record for process 99 of 99 to score; start fewer"):
        score_records(scoring(), unseen, Workers(98, 99))
    with pytest.raises(CommandError, match="does not end in .parquet"):
        replace(scoring(), output=tmp_path / "s.csv")
    request = scoring()
    request.nonmembers.unlink()
    os.mkfifo(request.nonmembers)
    with pytest.raises(CommandError, match="nonmembers.jsonl is a device or a pipe, which can be read only once"):
        scoring()


@pytest.mark.slow
def test_processes_write_a_part_each(scoring: Callable[..., ScoringRequest], forked: Forked, tmp_path: Path) -> None:
    request = scoring()
    files = ["--members", str(request.members), "--nonmembers", str(request.nonmembers)]
    call = ["audit", "score-records", str(request.model), *files, "-o", str(request.output), "--device", "cpu"]
    for process in forked.together(2, call):
        assert process.code == 0, process.errors
    assert sorted(path.name for path in tmp_path.glob("*.parquet")) == [
        "s-00000-of-00002.parquet", "s-00001-of-00002.parquet"
    ]  # fmt: skip
    assert run(["audit", "scores", str(tmp_path / "s-*.parquet")]) == 0
    assert (tmp_path / "s.audit.report.json").exists()
