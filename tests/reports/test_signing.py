"""Signatures: made, checked by openssl and by hand, and refused where anything was changed."""

from __future__ import annotations

import base64
import json
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.gate import files
from tests.gate.made import FAIL, PASS, PROVED, auc, audit, judged, making, only

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a report, a pair of keys of its signer, and another's."""
    monkeypatch.chdir(tmp_path)
    making(tmp_path / "m.report.json", PROVED)
    for name in ("ci", "other"):
        assert run(["sign", "--new-key", name, "-q"]) == 0
    return tmp_path


def signed(here: Path, *names: str, key: str = "ci.key") -> None:
    assert run(["sign", *names, "--key", key, "-q"]) == 0


def test_keys_are_the_owner_s_and_never_replaced(here: Path, capsys: Capture) -> None:
    assert stat.S_IMODE((here / "ci.key").stat().st_mode) == 0o600
    before = (here / "ci.key").read_bytes()
    assert run(["sign", "--new-key", "ci", "--force"]) == 2
    assert "a key is never replaced; choose another --new-key" in capsys.readouterr().err
    assert (here / "ci.key").read_bytes() == before


@pytest.mark.parametrize(("mode", "said"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_key_that_others_may_read_is_noted(here: Path, capsys: Capture, mode: int, *, said: bool) -> None:
    (here / "ci.key").chmod(mode)
    capsys.readouterr()
    assert run(["sign", "m.report.json", "--key", "ci.key"]) == 0
    assert ("ci.key may be read by other users" in " ".join(capsys.readouterr().err.split())) is said


def test_a_report_is_read_once_to_be_signed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a report that is replaced while it is signed, of which a signature would name two."""
    given, real = [], files.read_bounded

    def counted(path: Path, *more: Any) -> bytes:
        given.append(path.name)
        return real(path, *more)

    monkeypatch.setattr(files, "read_bounded", counted)
    signed(here, "m.report.json")
    assert given.count("m.report.json") == 1


def test_a_signature_is_checked(here: Path, capsys: Capture) -> None:
    signed(here, "m.report.json")
    assert run(["sign", "m.report.json", "--check", "other.pub", "--check", "ci.pub"]) == 0
    assert "m.report.json: signed by ci.pub (key " in capsys.readouterr().out
    assert run(["sign", "m.report.json", "--check", "other.pub"]) == 1
    assert "bears no valid signature by other.pub" in capsys.readouterr().out


def test_more_signatures_than_anyone_puts_on_a_report_are_not_tried(here: Path, capsys: Capture) -> None:
    """Each costs a verification with each key: sixteen megabytes of them are minutes."""
    signed(here, "m.report.json")
    path = here / "m.dsse.json"
    body = json.loads(path.read_text())
    right, wrong = body["signatures"][0], {"sig": base64.b64encode(bytes(64)).decode()}
    for count, code in ((64, 0), (65, 1)):
        path.write_text(json.dumps({**body, "signatures": [*[wrong] * (count - 1), right]}))
        assert run(["sign", "m.report.json", "--check", "ci.pub"]) == code
    assert "bears 65 signatures, and 64 are tried at most" in capsys.readouterr().out


def test_two_files_with_one_name_for_their_signatures_are_refused(here: Path, capsys: Capture) -> None:
    """The second would take the place of the first, and both would be said to be signed."""
    shutil.copy("m.report.json", "m.json")
    assert run(["sign", "m.report.json", "m.json", "--key", "ci.key"]) == 2
    assert "would both be called m.dsse.json; rename one of the two" in capsys.readouterr().err
    assert not (here / "m.dsse.json").exists()
    signed(here, "m.report.json", "./m.report.json")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_agrees(here: Path) -> None:
    signed(here, "m.report.json")
    body = json.loads((here / "m.dsse.json").read_text())
    payload = base64.b64decode(body["payload"])
    kind = body["payloadType"]
    (here / "message").write_bytes(f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload)
    (here / "signature").write_bytes(base64.b64decode(body["signatures"][0]["sig"]))
    command = "openssl pkeyutl -verify -pubin -inkey ci.pub -rawin -in message -sigfile signature"
    assert subprocess.run(command.split(), cwd=here, capture_output=True).returncode == 0
    subjects = json.loads(payload)["subject"]
    sha = subprocess.run(["sha256sum", "m.report.json"], cwd=here, capture_output=True, text=True).stdout.split()[0]
    assert subjects[0]["digest"]["sha256"] == sha
    assert [subject["name"] for subject in subjects] == ["m.report.json", "m/model.safetensors"]


def _swap_payload(path: Path) -> None:
    """Another's statement under this signature."""
    body = json.loads(path.read_text())
    statement = json.loads(base64.b64decode(body["payload"]))
    statement["subject"][1]["digest"] = {"blake3": "0" * 64}
    body["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    path.write_text(json.dumps(body))


def _retyped(path: Path) -> None:
    path.write_text(path.read_text().replace("vnd.in-toto+json", "vnd.in-toto+jsom"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_swap_payload, "no valid signature"),
        (_retyped, "no valid signature"),
        (lambda place: place.write_text("{}"), "no DSSE envelope"),
        (lambda place: place.write_text("[" * 100_000), "no DSSE envelope"),
        (lambda place: place.write_bytes(b"\xff"), "no DSSE envelope"),
        (
            lambda place: place.write_text('{"payloadType": "x", "payload": "", "signatures": [1]}'),
            "no valid signature",
        ),
        (Path.unlink, "does not exist"),
    ],
)
def test_a_changed_envelope_is_refused(
    here: Path, capsys: Capture, change: Callable[[Path], object], says: str
) -> None:
    signed(here, "m.report.json")
    change(here / "m.dsse.json")
    assert run(["sign", "m.report.json", "--check", "ci.pub"]) == 1
    assert says in capsys.readouterr().out


def test_a_changed_report_is_refused(here: Path, capsys: Capture) -> None:
    signed(here, "m.report.json")
    making(here / "m.report.json", PROVED, name="pasted")
    assert run(["sign", "m.report.json", "--check", "ci.pub"]) == 1
    assert "signature of other files" in capsys.readouterr().out


def test_another_statement_by_the_same_key_is_no_signature_of_a_report(here: Path, capsys: Capture) -> None:
    """The signer may sign other things than reports; their envelopes must not serve."""
    from privctl.reports import signing

    making(here / "n.report.json", PROVED, name="n")
    signed(here, "n.report.json")
    (here / "n.dsse.json").rename(here / "m.dsse.json")
    assert run(["sign", "m.report.json", "--check", "ci.pub"]) == 1
    assert "signature of other files" in capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signing, "PREDICATE", "tag:privctl,2026:other/v1")
        assert run(["sign", "m.report.json", "--key", "ci.key", "-f"]) == 0
    capsys.readouterr()
    assert run(["sign", "m.report.json", "--check", "ci.pub"]) == 1
    assert "statement of another kind" in capsys.readouterr().out


def test_a_report_that_a_signed_one_names_as_a_file_is_not_signed(here: Path, capsys: Capture) -> None:
    """Whoever hands in a report to be signed cannot have another one signed with it."""
    from privctl.storage.digest import file_digest

    inner, outer = making(here / "n.report.json", PROVED, name="n"), json.loads((here / "m.report.json").read_text())
    slipped = {"role": "companion", "path": "n.json", "digest": file_digest(inner), "bytes": inner.stat().st_size}
    outer["outputs"] += [slipped, *json.loads(inner.read_text())["outputs"]]
    (here / "m.report.json").write_text(json.dumps(outer))
    signed(here, "m.report.json")
    assert run(["sign", "m.report.json", "--check", "ci.pub"]) == 0
    shutil.copy(here / "m.dsse.json", here / "n.dsse.json")
    assert run(["sign", "n.report.json", "--check", "ci.pub"]) == 1
    assert "n.dsse.json is a signature of other files" in capsys.readouterr().out
    gate = only(judged(inner, max_epsilon="8", require_signer="ci.pub"), "require_signer")
    assert gate.outcome is FAIL


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["m.report.json"], 2, "give exactly one of --key"),
        (["m.report.json", "--key", "ci.key", "--check", "ci.pub"], 2, "give exactly one of --key"),
        (["--key", "ci.key"], 2, "there are no reports to sign or check"),
        (["m.report.json", "--new-key", "x"], 2, "signs nothing"),
        (["m.report.json", "--key", "ci.pub"], 3, "ci.pub is a public key; sign with the private key of its pair"),
        (["m.report.json", "--check", "ci.key"], 3, "ci.key is a private key, to be kept secret; signatures are"),
        (["--new-key", "gone/ci"], 2, "gone is not a folder to write ci.key into"),
        (["m.report.json", "--key", "m.report.json"], 3, "no key in PEM"),
        (["m.report.json", "--key", "absent.key"], 3, "does not exist"),
        (["ci.pub", "--key", "ci.key"], 3, "ci.pub"),
    ],
)
def test_mistakes_are_one_sentence(here: Path, capsys: Capture, arguments: list[str], code: int, says: str) -> None:
    assert run(["sign", *arguments]) == code
    stderr = capsys.readouterr().err
    assert says in stderr
    assert "Traceback" not in stderr
    assert not list(here.glob("*.dsse.json"))


def test_nothing_is_replaced_without_force(here: Path, capsys: Capture) -> None:
    signed(here, "m.report.json")
    before = (here / "m.dsse.json").read_bytes()
    assert run(["sign", "m.report.json", "--key", "other.key"]) == 2
    assert (here / "m.dsse.json").read_bytes() == before


@pytest.mark.parametrize("kind", ["ec", "password"])
def test_keys_of_another_kind_are_refused(here: Path, capsys: Capture, kind: str) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else ed25519.Ed25519PrivateKey.generate()
    hidden = BestAvailableEncryption(b"x") if kind == "password" else NoEncryption()
    (here / "k").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    assert run(["sign", "m.report.json", "--key", "k"]) == (3 if kind == "ec" else 2)
    assert {"ec": "another kind of key", "password": "decrypt it first"}[kind] in capsys.readouterr().err


# In a gate.


def test_a_gate_asks_for_a_signer_of_every_report(here: Path) -> None:
    report, looked = here / "m.report.json", audit(here / "a.report.json", auc(0.5, 0.45, 0.55))
    asked = {"max_epsilon": "8", "require_signer": "ci.pub"}
    assert {
        finding.outcome for finding in judged(report, looked, **asked).findings if finding.rule == "require_signer"
    } == {FAIL}
    signed(here, "m.report.json")
    found = only(judged(report, looked, **asked), "require_signer")
    assert (found.outcome, found.subject) == (FAIL, str(looked))
    signed(here, "a.report.json")
    assert only(judged(report, looked, **asked), "require_signer").outcome is PASS
    assert (
        only(judged(report, looked, **{**asked, "require_signer": "other.pub,ci.pub"}), "require_signer").outcome
        is PASS
    )
    making(report, PROVED, name="pasted")
    assert any(
        finding.outcome is FAIL for finding in judged(report, **asked).findings if finding.rule == "require_signer"
    )


def test_a_signer_cannot_be_waived(here: Path, capsys: Capture) -> None:
    (here / "privctl-policy.toml").write_text(
        'max_epsilon = 8\nrequire_signer = "ci.pub"\n'
        '[[waiver]]\nid = "W"\nrule = "require_signer"\nreason = "x"\nexpires = 2099-01-01\n'
    )
    assert run(["gate", "m.report.json"]) == 2
    assert "require_signer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "says"), [("m.report.json", "holds no key in PEM"), ("ci.key", "is a private key"), ("none.pub", "exist")]
)
def test_a_policy_that_names_no_public_key_is_malformed(here: Path, capsys: Capture, key: str, says: str) -> None:
    """Exit code 3 would mean that the reports leave the question open."""
    signed(here, "m.report.json")
    asked = ["gate", "m.report.json", "--max-epsilon", "8", "--require-signer"]
    assert run([*asked, "ci.pub"]) == 1  # the report is old
    capsys.readouterr()
    assert run([*asked, key]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
