"""The log of audits in a gate: the honest flow passes, and every way to hide an audit fails with its reason."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import CommandError
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.report import Artifact, LogPosition, TensorDigest
from privctl.gate.checks import RULES
from privctl.gate.judge import judge
from privctl.gate.policy import read_policy
from privctl.reports.audit_log import begin, finish, read_log
from privctl.storage.digest import file_digest
from tests.gate.made import FAIL, INCONCLUSIVE, NOW, PASS, PROVED, auc, audit, judged, making, of, only
from tests.logs import abandoned, audited, begun, edited, lines, reordered, without, written_anew

ASKED = {"require_audit_log": "m.audits.jsonl", "max_auc": "0.6"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a model's report, two honest audits and their log."""
    monkeypatch.chdir(tmp_path)
    making(Path("m.report.json"), PROVED)
    audited(Path("m.audits.jsonl"), Path("a.report.json"), 0.5)
    audited(Path("m.audits.jsonl"), Path("b.report.json"), 0.52)
    return tmp_path


def found(*reports: str, **more: str) -> dict[str, list[tuple[GateOutcome, str]]]:
    """What the two rules found."""
    judgement = judged(*map(Path, ("m.report.json", *(reports or ("a.report.json", "b.report.json")))), **ASKED | more)
    return {
        rule: [(finding.outcome, finding.message) for finding in of(judgement, rule)]
        for rule in ("require_audit_log", "audits_shown")
    }


def wrong(*reports: str, **more: str) -> list[str]:
    """The messages of what fails; nothing else is other than passed."""
    every = [each for some in found(*reports, **more).values() for each in some]
    assert {outcome for outcome, _ in every} <= {PASS, FAIL}
    return [message for outcome, message in every if outcome is FAIL]


def test_the_honest_flow_passes(here: Path) -> None:
    log = read_log(Path("m.audits.jsonl"))
    assert found() == {
        "require_audit_log": [
            (PASS, "2 audits of this model and 0 of others; keep its head to check later that no line was changed: "
                   f"line 5, {log.head}")
        ],
        "audits_shown": [(PASS, "the report of each of 2 audits of this model in the log was given")],
    }  # fmt: skip
    Path("kept").write_text(f"seen in build 7: {log.head}\n")
    audited(Path("m.audits.jsonl"), Path("c.report.json"), 0.5)
    audited(Path("m.audits.jsonl"), Path("other.report.json"), 0.9, name="n")
    assert wrong("a.report.json", "b.report.json", "c.report.json", audit_log_head="kept") == []
    assert wrong("a.report.json", "b.report.json", "c.report.json", audit_log_head=log.head) == []
    for outcome, _ in (*found()["require_audit_log"], *found("c.report.json")["require_audit_log"]):
        assert outcome is PASS


def test_one_audit_is_singular(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audited(Path("n.audits.jsonl"), Path("n.report.json"), name="n")
    judgement = judged(Path("m.report.json"), Path("a.report.json"), require_audit_log="n.audits.jsonl")
    assert not [finding for finding in judgement.findings if "1 audits" in finding.message]
    audited(Path("m1.audits.jsonl"), Path("c.report.json"), 0.5)
    judgement = judged(Path("m.report.json"), Path("c.report.json"), require_audit_log="m1.audits.jsonl")
    assert only(judgement, "require_audit_log").message.startswith("1 audit of this model and 0 of others; ")


def test_without_the_key_nothing_is_asked(here: Path) -> None:
    Path("m.audits.jsonl").unlink()
    judgement = judged(Path("m.report.json"), Path("a.report.json"), max_auc="0.6")
    assert not of(judgement, "require_audit_log")
    assert not of(judgement, "audits_shown")


def test_a_bad_audit_that_is_hidden_fails_and_is_compared(here: Path) -> None:
    audited(Path("m.audits.jsonl"), Path("bad.report.json"), 0.83)
    audited(Path("m.audits.jsonl"), Path("c.report.json"), 0.5)
    (message,) = wrong("a.report.json", "b.report.json", "c.report.json")
    assert "produced a report that was not given" in message
    assert "according to the log it found more: AUC 0.83, and at most 0.52 in the reports given" in message
    judgement = judged(*map(Path, ("m.report.json", "a.report.json", "b.report.json", "bad.report.json")), **ASKED)
    assert [finding.outcome for finding in of(judgement, "max_auc")].count(FAIL) == 1, "shown to the gate, it is judged"


def test_a_harmless_audit_that_is_hidden_fails_too(here: Path) -> None:
    (message,) = wrong("b.report.json")
    assert "produced a report that was not given" in message
    assert "worse" not in message
    (message,) = wrong("a.report.json")
    assert message.endswith("(the newest)")


def test_an_audit_that_was_only_begun_fails(here: Path) -> None:
    begun(Path("m.audits.jsonl"))
    (message,) = wrong()
    assert "has no report, and the log does not say why (the newest)" in message
    audited(Path("m.audits.jsonl"), Path("c.report.json"), 0.5)
    (message,) = wrong("a.report.json", "b.report.json", "c.report.json")
    assert "newest" not in message


def test_an_audit_that_was_stopped_is_told_with_its_reason_and_can_be_waived(here: Path) -> None:
    abandoned(Path("m.audits.jsonl"), "the disk is full")
    (outcome, message), = found()["audits_shown"]  # fmt: skip
    assert outcome is INCONCLUSIVE
    assert "ended without a report: the disk is full" in message
    subject = _left_out(here).subject
    assert subject.startswith("m.audits.jsonl line 6 (")
    policy = (
        'max_auc = 0.6\nrequire_audit_log = "m.audits.jsonl"\nrecompute = false\n[[waiver]]\nid = "W"\n'
        f'rule = "audits_shown"\nsubject = "{subject}"\nreason = "disk"\nexpires = 2099-01-01\n'
    )
    paths = [Path(f"{name}.report.json") for name in ("m", "a", "b")]
    for text, outcome in ((policy, PASS), (policy.replace("(", "(0"), INCONCLUSIVE)):
        Path("privctl-policy.toml").write_text(text)
        assert judge(paths, read_policy(None, {}, {}, RULES), None, NOW).outcome is outcome


def _left_out(here: Path) -> Finding:
    judgement = judged(*map(Path, ("m.report.json", "a.report.json", "b.report.json")), **ASKED)
    return next(finding for finding in of(judgement, "audits_shown"))


def test_a_broken_log_cannot_be_waived(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("privctl-policy.toml").write_text(
        'require_audit_log = "m.audits.jsonl"\n'
        '[[waiver]]\nid = "W"\nrule = "require_audit_log"\nreason = "x"\nexpires = 2099-01-01\n'
    )
    assert run(["gate", "m.report.json"]) == 2
    assert "would waive require_audit_log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without(3), "line 3 does not follow from the lines before it"),
        (without(2, 3), "line 2 does not follow"),
        (without(1), "line 1 does not follow|is no log of audits"),
        (reordered(2, 4), "line 2 does not follow"),
        (reordered(3, 5), "line 3 does not follow"),
        (edited(b'"AUC":0.52', b'"AUC":0.50'), "line 5 does not follow"),
        (edited(b'"refuted":0', b'"refuted":1'), "line 3 does not follow"),
        (lambda log: log.write_bytes(b""), "holds no entry"),
        (lambda log: log.write_bytes(b"{}\n"), "is no log of audits"),
        (lambda log: shutil.copy("a.report.json", log), "is no log of audits"),
    ],
)
def test_a_log_that_was_tampered_with_fails(here: Path, change: Callable[[Path], object], says: str) -> None:
    change(Path("m.audits.jsonl"))
    messages = wrong()
    assert re.search(says, messages[0]), messages


def test_a_tail_cut_off_shows_by_the_report_given(here: Path) -> None:
    """The reports name their lines: a tail can go unnoticed only together with them."""
    Path("m.audits.jsonl").write_bytes(b"".join(lines(Path("m.audits.jsonl"))[:3]))
    assert wrong() == ["the line that this audit names is not in the log: the audit was recorded in another log"]
    assert wrong("a.report.json") == [], "which a chain alone cannot tell"


def test_a_tail_cut_off_with_its_reports_shows_by_a_head_that_was_kept(here: Path) -> None:
    head = read_log(Path("m.audits.jsonl")).head
    Path("m.audits.jsonl").write_bytes(b"".join(lines(Path("m.audits.jsonl"))[:3]))
    (message,) = wrong("a.report.json", audit_log_head=head)
    assert "does not contain the earlier head" in message


def test_a_log_written_anew_shows_by_the_reports_and_by_a_head_alone(here: Path) -> None:
    """The whole chain is right again without the bad audit, and the report that was shown no longer fits it."""
    log = Path("m.audits.jsonl")
    audited(log, Path("bad.report.json"), 0.9)
    audited(log, Path("c.report.json"), 0.5)
    head = read_log(log).head
    written_anew(log, lambda said: said["entry"] not in (6, 7))
    assert len(read_log(log).audits) == 3
    reports = ("a.report.json", "b.report.json", "c.report.json")
    assert "the line that this audit names is not in the log" in wrong(*reports)[0]
    assert any("does not contain the earlier head" in message for message in wrong(*reports, audit_log_head=head))
    # Whoever also writes the report anew passes where no head was kept, as the threat model says.
    forged = next(audit for audit in read_log(log).audits if audit.begun.number == 6)
    position = LogPosition(path=log.name, entry=6, digest=forged.begun.digest)
    audit(Path("c.report.json"), auc(0.5, 0.45, 0.55), log=position)
    edited(forged.report.encode(), file_digest(Path("c.report.json")).encode())(log)
    written_anew(log, lambda said: True)
    assert wrong(*reports) == []
    assert "does not contain the earlier head" in wrong(*reports, audit_log_head=head)[0]


def test_two_logs_do_not_pass(here: Path) -> None:
    """The bad audit in one log, the good one in another."""
    audited(Path("secret.audits.jsonl"), Path("bad.report.json"), 0.9)
    assert "was recorded in another log" in wrong("a.report.json", "b.report.json", "bad.report.json")[0]
    assert wrong("bad.report.json", require_audit_log="m.audits.jsonl")
    both = "m.audits.jsonl,secret.audits.jsonl"
    (message,) = wrong("a.report.json", "b.report.json", require_audit_log=both)
    assert "not given" in message


def test_a_fork_shows_by_a_head_of_the_other_branch(here: Path) -> None:
    log, kept = Path("m.audits.jsonl"), Path("copy")
    shutil.copy(log, kept)
    audited(log, Path("bad.report.json"), 0.9)
    head = read_log(log).head
    shutil.copy(kept, log)
    audited(log, Path("good.report.json"), 0.5)
    reports = ("a.report.json", "b.report.json", "good.report.json")
    assert wrong(*reports) == [], "each branch is whole by itself"
    (message,) = wrong(*reports, audit_log_head=head)
    assert "cut short or rewritten, or is another log" in message
    assert "was recorded in another log" in wrong("a.report.json", "b.report.json", "bad.report.json")[0]


def test_a_report_edited_after_the_log_or_never_entered_fails(here: Path) -> None:
    audit(Path("free.report.json"), auc(0.4, 0.35, 0.45))
    assert wrong("a.report.json", "b.report.json", "free.report.json") == ["this audit was not recorded in a log"]
    text = Path("b.report.json").read_text()
    Path("b.report.json").write_text(text.replace("0.52", "0.51"))
    messages = wrong()
    assert messages[0] == "according to the log, this audit produced another report: the digest differs"
    assert "produced a report that was not given" in messages[1]


def test_a_report_of_other_weights_than_those_entered_fails(here: Path) -> None:
    log = Path("m.audits.jsonl")
    position = begun(log, "n")
    audit(Path("c.report.json"), auc(0.5, 0.45, 0.55), log=position)
    finish(log, position, report=file_digest(Path("c.report.json")), refuted=0, worst={})
    assert wrong("a.report.json", "b.report.json", "c.report.json") == [
        "according to the log, this audit was of other weights"
    ]


def test_a_report_of_a_line_that_ended_otherwise_fails(here: Path) -> None:
    position = begun(Path("m.audits.jsonl"))
    audit(Path("c.report.json"), auc(0.5, 0.45, 0.55), log=position)
    messages = wrong("a.report.json", "b.report.json", "c.report.json")
    assert messages[0] == "according to the log, this audit produced no report"
    assert "the log does not say why" in messages[1]


def test_the_same_tensors_in_other_files_are_the_same_model(here: Path) -> None:
    """Saved again with another header, the weights' files have other digests."""
    tensors = (TensorDigest(name="w", dtype="F32", shape=(2,), digest="blake3:" + "7" * 64),)
    first = Artifact(role="model", path="m.safetensors", digest="blake3:" + "1" * 64, bytes=8, tensors=tensors)
    again = Artifact(role="model", path="m.safetensors", digest="blake3:" + "2" * 64, bytes=9, tensors=tensors)
    begin(Path("t.audits.jsonl"), (first,), {})
    audit(Path("t.report.json"), auc(0.5, 0.45, 0.55), inputs=(again,))
    judgement = judged(Path("t.report.json"), require_audit_log="t.audits.jsonl")
    assert "the log does not say why" in only(judgement, "audits_shown").message


def test_no_audit_or_no_log_is_inconclusive(here: Path) -> None:
    judgement = judged(Path("m.report.json"), require_audit_log="absent.audits.jsonl")
    assert only(judgement, "require_audit_log").outcome is INCONCLUSIVE
    audited(Path("n.audits.jsonl"), Path("n.report.json"), name="n")
    judgement = judged(Path("m.report.json"), require_audit_log="n.audits.jsonl")
    assert only(judgement, "audits_shown").message == "no audit of this model is in the log"


def test_a_torn_last_line_leaves_open_whether_an_audit_is_missing(here: Path) -> None:
    log = Path("m.audits.jsonl")
    begun(log)
    os.truncate(log, log.stat().st_size - 7)
    ((outcome, message),) = found()["require_audit_log"]
    assert outcome is INCONCLUSIVE
    assert "its last line is cut off, after line" in message
    audited(log, Path("c.report.json"))
    assert wrong("a.report.json", "b.report.json", "c.report.json") == []


def test_earlier_audits_of_the_log_may_be_old(here: Path) -> None:
    for name, created in (("old", "2029-01-01T00:00:00Z"), ("new", "2030-01-09T00:00:00Z")):
        audit(Path(f"{name}.report.json"), auc(0.5, 0.45, 0.55), created=created)
    making(Path("m.report.json"), PROVED)
    paths = [Path(f"{name}.report.json") for name in ("m", "old", "new")]
    assert only(judged(*paths, max_age_days="30"), "max_age_days").outcome is FAIL
    asked = {"max_age_days": "30", "require_audit_log": "m.audits.jsonl"}
    assert only(judged(*paths, **asked), "max_age_days").outcome is PASS
    assert only(judged(*paths[:2], **asked), "max_age_days").outcome is FAIL


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"audit_log_head": "absent"},
            "absent is neither a head of a log nor a file that contains one; expected",
        ),
        ({"audit_log_head": "blake3:12ab"}, "blake3:12ab is neither a head of a log nor a file"),
        ({"audit_log_head": "m.report.json"}, "contains no head"),
    ],
)
def test_a_head_that_is_none_is_one_sentence(here: Path, more: dict[str, str], says: str) -> None:
    making(Path("m.report.json"), PROVED, step="x")
    Path("m.report.json").write_text("{}")
    with pytest.raises(CommandError, match=says):
        judged(Path("a.report.json"), **ASKED | more)


def test_a_head_without_a_log_is_one_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gate", "a.report.json", "--max-auc", "0.6", "--audit-log-head", "blake3:" + "0" * 64]) == 2
    assert "require_audit_log names no log" in capsys.readouterr().err


# Signed heads.


@pytest.fixture
def signed(here: Path) -> Path:
    """The same folder with everything signed."""
    assert run(["sign", "--new-key", "ci", "-q"]) == 0
    names = ["m.report.json", "a.report.json", "b.report.json", "m.audits.jsonl"]
    assert run(["sign", *names, "--key", "ci.key", "-q"]) == 0
    return here


def test_a_signed_log_passes_and_an_unsigned_one_does_not(signed: Path) -> None:
    assert wrong(require_signer="ci.pub") == []
    Path("m.audits.dsse.json").unlink()
    (message,) = wrong(require_signer="ci.pub")
    assert "no signer that the policy trusts signed its head: m.audits.dsse.json does not exist" in message
    assert run(["sign", "--new-key", "other", "-q"]) == 0
    assert run(["sign", "m.audits.jsonl", "--key", "other.key", "-q"]) == 0
    (message,) = wrong(require_signer="ci.pub")
    assert "bears no valid signature by ci.pub" in message


def test_a_tail_cut_off_after_signing_fails(signed: Path) -> None:
    Path("m.audits.jsonl").write_bytes(b"".join(lines(Path("m.audits.jsonl"))[:3]))
    (message,) = wrong("a.report.json", require_signer="ci.pub")
    assert "signs a head that m.audits.jsonl does not hold: the log was cut short" in message


def test_lines_after_the_signature_fail_until_they_are_signed(signed: Path) -> None:
    audited(Path("m.audits.jsonl"), Path("c.report.json"))
    reports = ("a.report.json", "b.report.json", "c.report.json")
    assert run(["sign", "c.report.json", "--key", "ci.key", "-q"]) == 0
    (message,) = wrong(*reports, require_signer="ci.pub")
    assert message == "it is signed up to line 5 of 7; sign it again"
    assert run(["sign", "m.audits.jsonl", "--key", "ci.key", "-q"]) == 0, "a longer log needs no --force"
    assert wrong(*reports, require_signer="ci.pub") == []


def test_a_check_names_the_lines_after_the_signature(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Path("m.audits.jsonl")
    for number, unsigned in ((6, "line 6 is"), (7, "lines 6 to 7 are")):
        if number == 6:
            position = begun(log)
        else:
            finish(log, position, report="blake3:" + "0" * 64, refuted=0, worst={})
        capsys.readouterr()
        assert run(["sign", "m.audits.jsonl", "--check", "ci.pub"]) == 0
        stdout = capsys.readouterr().out
        assert f"up to line 5 of {number}, " in stdout
        assert f"; {unsigned} NOT SIGNED: sign the log again" in stdout
    assert run(["sign", "m.audits.jsonl", "--key", "ci.key", "-q"]) == 0
    assert run(["sign", "m.audits.jsonl", "--check", "ci.pub"]) == 0
    assert "NOT SIGNED" not in capsys.readouterr().out


def test_a_report_s_signature_is_none_of_a_log(signed: Path) -> None:
    shutil.copy("a.dsse.json", "m.audits.dsse.json")
    (message,) = wrong(require_signer="ci.pub")
    assert "statement of another kind" in message
