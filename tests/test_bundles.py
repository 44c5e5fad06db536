"""Bundles that model-transparency made (model_signing 1.1.1, ``sign key``, throw-away keys on P-256 and P-384).

``golden/sigstore`` holds its bytes and what it signed: three files one by one, and their folder (``folder``).
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.reports.audit_log import read_log
from tests.gate.made import FAIL, PASS, judged, of, only
from tests.logs import audited

GOLDEN = Path(__file__).parent / "golden" / "sigstore"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shutil.copytree(GOLDEN, tmp_path / "release"))
    return Path()


def test_bundles_of_another_tool_are_signatures(here: Path, capsys: Capture) -> None:
    names = ["m.report.json", "a.report.json", "m.audits.jsonl"]
    assert run(["sign", *names, "--check", "ec.pub"]) == 0
    out = capsys.readouterr().out
    assert "m.report.json: signed by ec.pub (key " in out
    assert f"up to line 3 of 3, {read_log(Path('m.audits.jsonl')).head}" in out
    assert run(["sign", "m.report.json", "--check", "p384.pub"]) == 1
    assert "bears no valid signature by p384.pub" in capsys.readouterr().out


@pytest.mark.parametrize(("bundle", "key"), [("folder", "ec.pub"), ("m-p384", "p384.pub")])
def test_a_folder_s_bundle_and_another_curve_serve(here: Path, bundle: str, key: str) -> None:
    shutil.copy(f"{bundle}.sigstore.json", "m.sigstore.json")
    assert run(["sign", "m.report.json", "--check", key]) == 0


def test_a_gate_takes_them(here: Path) -> None:
    paths = [Path("m.report.json"), Path("a.report.json")]
    asked = {"require_signer": "ec.pub", "require_audit_log": "m.audits.jsonl", "max_auc": "0.6"}
    judgement = judged(*paths, **asked)
    assert {finding.outcome for finding in of(judgement, "require_signer")} == {PASS}
    assert only(judgement, "require_audit_log").outcome is PASS
    shutil.copy("m.sigstore.json", "a.sigstore.json")
    found = only(judged(*paths, **asked), "require_signer")
    assert found.outcome is FAIL
    assert "a.sigstore.json is a signature of other files" in found.message


def test_lines_after_a_bundle_are_unsigned(here: Path) -> None:
    audited(Path("m.audits.jsonl"), Path("b.report.json"))
    paths = [Path(f"{name}.report.json") for name in ("m", "a", "b")]
    judgement = judged(*paths, require_signer="ec.pub", require_audit_log="m.audits.jsonl")
    assert only(judgement, "require_audit_log").message == "it is signed up to line 3 of 5; sign it again"


def test_either_signature_serves(here: Path) -> None:
    assert run(["sign", "--new-key", "ci", "-q"]) == 0
    assert run(["sign", "m.report.json", "--key", "ci.key", "-q"]) == 0
    assert run(["sign", "m.report.json", "--check", "ec.pub"]) == 0
    assert run(["sign", "m.report.json", "--check", "ci.pub"]) == 0


def _changed(change: Callable[[dict[str, Any]], object]) -> Callable[[], None]:
    def apply() -> None:
        body = json.loads(Path("m.sigstore.json").read_text())
        change(body)
        Path("m.sigstore.json").write_text(json.dumps(body))

    return apply


def _restated(change: Callable[[dict[str, Any]], object]) -> Callable[[], None]:
    """Another statement under this signature."""

    def apply(body: dict[str, Any]) -> None:
        statement = json.loads(base64.b64decode(body["dsseEnvelope"]["payload"]))
        change(statement)
        body["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()

    return _changed(apply)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: Path("m.report.json").write_text(Path("m.report.json").read_text() + " "), "signature of other files"),
        (_restated(lambda statement: statement["predicate"]["resources"][0].update(digest="0" * 64)), "no valid"),
        (_changed(lambda body: body.update(mediaType="application/vnd.dev.sigstore.bundle.v0.1+json")), "version 0.3"),
        (
            _changed(lambda body: body.update(verificationMaterial={"certificate": {"rawBytes": "AA=="}})),
            "without a key (keyless)",
        ),
        (_changed(lambda body: body.pop("dsseEnvelope")), "no statement about files"),
        (_changed(lambda body: body.update(dsseEnvelope=[1])), "no DSSE envelope"),
        (_changed(lambda body: body.update(verificationMaterial=None)), "without a key"),
        (lambda: Path("m.sigstore.json").write_text('{"mediaType": {}}'), "version 0.3"),
    ],
)
def test_a_changed_bundle_is_refused(here: Path, capsys: Capture, change: Callable[[], object], says: str) -> None:
    change()
    assert run(["sign", "m.report.json", "--check", "ec.pub"]) == 1
    captured = capsys.readouterr()
    assert says in captured.out
    assert "Traceback" not in captured.err


def _signed_statement(statement: dict[str, Any]) -> None:
    """A bundle over ``statement`` by a key of our own, whose owner wants to say something odd."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.generate_private_key(ec.SECP256R1())
    payload, kind = json.dumps(statement).encode(), b"application/vnd.in-toto+json"
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    signature = base64.b64encode(key.sign(message, ec.ECDSA(hashes.SHA256()))).decode()
    body = json.loads(Path("m.sigstore.json").read_text())
    body["dsseEnvelope"] |= {"payload": base64.b64encode(payload).decode(), "signatures": [{"sig": signature}]}
    Path("m.sigstore.json").write_text(json.dumps(body))
    Path("odd.pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda statement: None, "signed by odd.pub"),
        (lambda statement: statement.update(predicateType="https://slsa.dev/provenance/v1"), "another kind"),
        (lambda statement: statement["subject"][0]["digest"].update(sha256="0" * 64), "contradicts itself"),
        (lambda statement: statement["subject"].append(statement["subject"][0]), "no statement about files"),
        (lambda statement: statement["predicate"].pop("resources"), "no statement about files"),
        (lambda statement: statement["predicate"]["resources"][0].update(algorithm="md5"), "of other files"),
    ],
)
def test_what_a_signer_may_not_say(
    here: Path, capsys: Capture, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    body = json.loads(Path("m.sigstore.json").read_text())
    statement = json.loads(base64.b64decode(body["dsseEnvelope"]["payload"]))
    change(statement)
    _signed_statement(statement)
    assert run(["sign", "m.report.json", "--check", "odd.pub"]) == (0 if "signed by" in says else 1)
    assert says in capsys.readouterr().out


def test_such_a_key_signs_nothing_here(here: Path, capsys: Capture) -> None:
    """Public keys of other kinds are read to check what others signed; privctl signs with Ed25519 alone."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    for key in (ec.generate_private_key(ec.SECP256K1()), rsa.generate_private_key(65537, 2048)):
        Path("k.pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        assert run(["sign", "m.report.json", "--check", "k.pub"]) == 3
        assert "another kind of key" in capsys.readouterr().err
