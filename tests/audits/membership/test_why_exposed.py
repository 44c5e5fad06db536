"""Why members may stand out, and what leaving out those that are repeated would change."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from audits.membership.why_exposed import why_exposed
from audits.whole.leaking_records import leaking_records
from privctl.cli import run
from privctl.data.records import Record
from privctl.domain.leaking import LeakingRecord, Reason, Why, separation
from privctl.show.text.leaking import effect_of_removal
from tests.audits.tiny import sentences, write_jsonl


def reasons(*more: Record, reference: np.ndarray | None = None) -> dict[int, dict[Why, str]]:
    """Of ``more`` among 30 records without sequences in common."""
    others = [Record(i, text, "usual") for i, text in enumerate(sentences(200, seed=3, longest=8), start=1)]
    distinct = {record.digest: record for record in reversed([*others, *more])}
    judged = sorted(distinct.values(), key=lambda record: record.line)
    found = why_exposed([*others, *more], judged, reference)
    return {line: {reason.why: reason.text for reason in each} for line, each in found.items() if line > 200}


def test_copies_and_near_copies() -> None:
    text = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"
    found = reasons(
        Record(301, text, "usual"),
        Record(302, text, "usual"),
        Record(303, f"w50 w51 {text[:-4]}", "usual"),
        Record(304, "w9 w8 w7 w6 w5 w4 w3 w2 w1", "usual"),
    )
    assert found[301] == {
        Why.COPIES: "occurs 2 times in its file",
        Why.NEAR_COPY: "83 % of its sequences of 5 words are in line 303 too",
    }
    assert found[303] == {Why.NEAR_COPY: "71 % of its sequences of 5 words are in line 301 too"}
    assert 304 not in found
    assert 302 not in found, "it is scored once, as line 301"


def test_rare_words_and_labels() -> None:
    found = reasons(Record(301, "xylem ylem zymurgy w1 w2", "usual"), Record(302, "w5 w6 w7 w1", "unheard-of"))
    assert found == {
        301: {Why.RARE_WORDS: "3 of its 5 words are in no other member"},
        302: {Why.RARE_LABEL: "its label is that of 1 of 202 members"},
    }
    assert reasons(Record(301, "xylem ylem w1 w2", "usual")) == {}


def test_of_many_equally_frequent_labels_none_is_rare() -> None:
    texts = sentences(200, seed=3, longest=8)
    for label in (lambda i: f"{i % 100}", lambda i: f"{i / 7}"):  # two records each; numbers to predict
        records = [Record(i, text, label(i)) for i, text in enumerate(texts, start=1)]
        assert not any(r.why is Why.RARE_LABEL for each in why_exposed(records, records).values() for r in each)


def test_what_is_hard_without_training() -> None:
    records = [Record(i, f"w{i % 60} w{i % 7}") for i in range(1, 101)]
    reference = np.linspace(-1.0, -5.0, 100)
    found = why_exposed(records, records, reference)
    assert sorted(found) == list(range(96, 101))
    assert why_exposed(records, records) == {}


def leaking(line: int, as_high: float, *why: Why) -> LeakingRecord:
    named = tuple(Reason(why=reason, text="") for reason in why)
    return LeakingRecord(
        file="m", line=line, extracted=None, scores={"loss": 0.0}, nonmembers_as_high={"loss": as_high}, reasons=named
    )


def test_what_would_be_seen_without_repetitions() -> None:
    records = [
        leaking(1, 0.0, Why.COPIES),
        leaking(2, 0.01, Why.NEAR_COPY),
        leaking(3, 0.5),
        leaking(4, 0.49, Why.HARD),
    ]
    whole = separation(records, "loss")
    assert whole is not None
    assert (whole.auc, whole.tpr, whole.records) == (pytest.approx(0.75), 0.5, 4)
    text = " ".join(effect_of_removal(records).split())
    assert text.startswith(
        "2 members are repeated among the members, exactly or nearly (--leaks FILE says which): their loss AUC is "
        "0.995, and 100"
    )
    assert "the AUC of all would be 0.505 instead of 0.75, and 0 % instead of 50 % would score so high" in text
    assert "a prediction from these scores; a model trained" in text
    assert effect_of_removal(records[2:3]) == "", "none is repeated"
    assert effect_of_removal(records[:2]) == "", "nothing is left"
    assert separation([], "loss") is None


def test_what_would_be_seen_without_members_that_stand_out() -> None:
    records = [
        leaking(1, 0.0, Why.RARE_WORDS, Why.COPIES),
        leaking(2, 0.1, Why.RARE_WORDS),
        leaking(3, 0.5, Why.HARD),
        leaking(4, 0.6),
    ]
    text = effect_of_removal(records)
    cells = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert cells["rare words"][2:] == ["2", "0.95", "50", "%", "0.45", "0", "%"]
    assert cells["hard"][1:] == ["1", "0.5", "0", "%", "0.767", "33.3", "%"]
    assert cells["copies"][1:] == ["1", "1", "100", "%", "0.6", "0", "%"]
    assert "How well loss recognizes these members, and the others if these were removed" in " ".join(text.split())
    assert "members with" not in effect_of_removal([leaking(1, 0.0, Why.COPIES), leaking(2, 0.5)]), "stated in words"


def test_an_audit_says_why_in_the_private_file(tmp_path: Path, llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts = [*sentences(30, seed=1), "w1 w2 w3 w4 w5 w6 w7 w8", "w1 w2 w3 w4 w5 w6 w7 w8"]
    members = write_jsonl(tmp_path / "m.jsonl", texts)
    others = write_jsonl(tmp_path / "n.jsonl", sentences(40, seed=2))
    call = [
        "audit",
        "membership",
        str(llama),
        "--members",
        str(members),
        "--nonmembers",
        str(others),
        "--attack",
        "loss",
    ]
    output = ["-o", str(tmp_path / "a.report.json"), "--log", str(tmp_path / "log.jsonl"), "--device", "cpu"]
    leaks = tmp_path / "leaks.jsonl"
    assert run([*call, *output, "--leaks", str(leaks), "--verbose"]) == 0
    rows = {row["line"]: row for row in map(json.loads, leaks.read_text().splitlines())}
    assert rows[31]["reasons"] == [{"why": "copies", "text": "occurs 2 times in its file"}]
    assert leaks.stat().st_mode & 0o777 == 0o600
    assert "w1 w2" not in leaks.read_text()
    out = " ".join(capfd.readouterr().out.split())
    assert "1 member is repeated among the members" in out
    assert "as high why" in out
    assert "reasons" not in (tmp_path / "a.report.json").read_text()


def test_only_members_have_reasons() -> None:
    arrays = {"member": np.array([True, False]), "line": np.array([1, 1]), "score.a": np.array([1.0, 0.0])}
    (record,) = leaking_records(arrays, Path("m"), None, {1: (Reason(why=Why.COPIES, text="x"),)})
    assert record.reasons[0].why.repeats
    assert leaking_records(arrays, Path("m"), None)[0].reasons == ()
