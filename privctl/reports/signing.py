"""Signed reports: a DSSE envelope beside a report says who vouches for it and for the files it wrote.

The envelope (https://github.com/secure-systems-lab/dsse, version 1) holds an in-toto Statement v1 whose subjects are
the report and every file among its outputs, by digest. Keys are Ed25519 (RFC 8032). A bundle made by Sigstore's
model-transparency with an elliptic-curve key is accepted too: it (https://github.com/sigstore/protobuf-specs, version
0.3) wraps a DSSE envelope whose statement (https://model_signing/signature/v1.0) lists files by SHA-256, and one digest
of all of them. A bundle made without a key (keyless) holds a certificate and a proof from a public log instead, which
only the tool that made it can check. A signature shows who made a statement; ``privctl verify`` checks whether it is
true.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_log import AuditLog, Entry
from privctl.reports.files import REPORT_SUFFIX
from privctl.storage.atomic import PendingFile, require_absent
from privctl.storage.commit import commit_together
from privctl.storage.digest import bytes_digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    PublicKey = Ed25519PublicKey | EllipticCurvePublicKey


STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
#: Our own predicate types, as tag URIs, which need no server (RFC 4151).
PREDICATE = "tag:privctl,2026:signed-report/v1"
_OTHERS = "named by others as sha256"
HEAD_PREDICATE = "tag:privctl,2026:head-of-audits/v1"
ENVELOPE_SUFFIX = ".dsse.json"
PRIVATE_SUFFIX, PUBLIC_SUFFIX = ".key", ".pub"
#: Curve -> its hash in Sigstore's specification.
_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
BUNDLE_PREDICATE = "https://model_signing/signature/v1.0"
#: The suffix of a bundle beside the file that it signs.
BUNDLE_SUFFIX = ".sigstore.json"
_MEDIA = "application/vnd.dev.sigstore.bundle.v0.3+json"
#: Largest envelope or key in bytes.
LARGEST = 16 << 20
#: Most signatures of an envelope; each is tried with each key, which takes up to a millisecond.
_MOST_SIGNATURES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A public key and the file from which it was read."""

    path: Path
    key: PublicKey

    @property
    def key_id(self) -> str:
        """The SHA-256 of the key's DER form, in hexadecimal."""
        return _key_id(self.key)


def envelope_path(report: Path) -> Path:
    """The path of the envelope beside the report or log at ``report``."""
    suffix = next(s for s in (REPORT_SUFFIX, ".jsonl", ".json", "") if report.name.endswith(s))
    return report.with_name(report.name.removesuffix(suffix) + ENVELOPE_SUFFIX)


def signatures_of(path: Path) -> tuple[Path, ...]:
    """The existing signature files of the report or log at ``path``, or the path of privctl's own if there is none."""
    envelope = envelope_path(path)
    bundle = envelope.with_name(envelope.name.removesuffix(ENVELOPE_SUFFIX) + BUNDLE_SUFFIX)
    return tuple(place for place in (envelope, bundle) if os.path.lexists(place)) or (envelope,)


def make_keys(stem: Path) -> tuple[Path, Path]:
    """Create a key pair in ``stem.key``, readable only by its owner, and ``stem.pub``; both paths are returned.

    Raises CommandError if either exists.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private, public = (stem.with_name(stem.name + suffix) for suffix in (PRIVATE_SUFFIX, PUBLIC_SUFFIX))
    for path in (private, public):
        require_absent(path, force=True, option="--new-key")
        if os.path.lexists(path):
            raise CommandError(f"{path} exists, and a key is never replaced; choose another --new-key")
    with PendingFile(private) as secret, PendingFile(public, public=True) as shown:
        secret.write_at(0, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        shown.write_at(0, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        commit_together([secret, shown], replace=False)
    return private, public


def private_key(path: Path, content: bytes) -> Ed25519PrivateKey:
    """The key in ``content``, read from ``path``; raises InputError unless it is an unencrypted Ed25519 key in PEM."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if b"-----BEGIN PUBLIC KEY" in content:
        raise InputError(f"{path} is a public key; sign with the private key of its pair, NAME{PRIVATE_SUFFIX}")
    key = _loaded(path, lambda: load_pem_private_key(content, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} holds another kind of key; make an Ed25519 key with privctl sign --new-key")
    return key


def signer(path: Path, content: bytes) -> Signer:
    """The public key in ``content``, read from ``path``.

    Raises InputError unless it is an Ed25519 key in PEM, or one on a NIST curve, as used by other tools.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if b"PRIVATE KEY-----" in content:
        raise InputError(
            f"{path} is a private key, to be kept secret; signatures are checked with the public key of its pair, "
            f"NAME{PUBLIC_SUFFIX}"
        )
    key = _loaded(path, lambda: load_pem_public_key(content))
    curve = key.curve.name if isinstance(key, EllipticCurvePublicKey) else ""
    if not isinstance(key, Ed25519PublicKey) and curve not in _HASHES:
        raise InputError(f"{path} holds another kind of key; expected the .pub of an Ed25519, P-256, -384 or -521 key")
    return Signer(path=path, key=key)


def envelope(report: PrivacyReport, name: str, sha256_digest: str, digest: str, key: Ed25519PrivateKey) -> bytes:
    """A DSSE envelope for the report ``name``, whose bytes have BLAKE3 ``digest`` and SHA-256 ``sha256_digest``."""
    subjects = [{"name": name, "digest": {**_digest(digest), "sha256": sha256_digest}}]
    subjects += [{"name": artifact.path, "digest": _digest(artifact.digest)} for artifact in report.outputs]
    statement = {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {"step": report.step, "created": report.created, "parents": [p.digest for p in report.parents]},
    }
    return _signed_envelope(statement, key)


def head_envelope(log: AuditLog, key: Ed25519PrivateKey) -> bytes:
    """A DSSE envelope for the head of ``log``, which covers all of its lines."""
    digests = {**_digest(bytes_digest(log.content)), "sha256": sha256(log.content).hexdigest()}
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": log.path.name, "digest": digests}],
        "predicateType": HEAD_PREDICATE,
        "predicate": {"lines": len(log.entries), "head": log.head},
    }
    return _signed_envelope(statement, key)


def signed_by(
    content: bytes, signers: Sequence[Signer], report: PrivacyReport, digest: str, sha256_digest: str
) -> Signer:
    """The one of ``signers`` who signed the report with ``digest``, by the envelope or bundle in ``content``.

    A bundle only needs to name the report, by ``sha256_digest``, since the report has the digests of its outputs.

    Raises InputError, whose message continues a sentence about the envelope, if it is not an envelope, is about other
    files, or has no valid signature by any of them.
    """
    payload_type, payload, signatures = _open_envelope(content)
    signer = _signature(_signed_message(payload_type, payload), signatures, signers)
    if signer is None:
        names = ", ".join(str(signer.path) for signer in signers)
        raise InputError(f"bears no valid signature by {names}")
    first, *others = _subjects(payload_type, payload)
    is_own = digest in first and {artifact.digest for artifact in report.outputs} <= first.union(*others)
    if not is_own and f"{_OTHERS}:{sha256_digest}" not in first:
        raise InputError("is a signature of other files: their digests differ")
    return signer


def signed_head(content: bytes, signers: Sequence[Signer], log: AuditLog) -> tuple[Signer, Entry]:
    """(the one of ``signers`` who signed a head of ``log``, that line), by the envelope in ``content``.

    Raises InputError, whose message continues a sentence about the envelope, if it is not an envelope, has no valid
    signature by any of them, or signs a head that the log does not contain.
    """
    payload_type, payload, signatures = _open_envelope(content)
    signer = _signature(_signed_message(payload_type, payload), signatures, signers)
    if signer is None:
        raise InputError(f"bears no valid signature by {', '.join(str(signer.path) for signer in signers)}")
    statement = _statement(payload_type, payload, HEAD_PREDICATE, BUNDLE_PREDICATE)
    try:
        others = statement["predicateType"] == BUNDLE_PREDICATE
        entry = _line_of(log, files_in(statement)) if others else log.holds(statement["predicate"]["head"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError("holds no statement about the head of a log") from None
    if entry is None:
        raise InputError(
            f"signs a head that {log.path} does not hold: the log was cut short, written anew, or is another"
        )
    return signer, entry


def _signature(message: bytes, signatures: Iterable[Any], signers: Sequence[Signer]) -> Signer | None:
    from cryptography.exceptions import InvalidSignature

    for entry in signatures:
        try:
            signature = base64.b64decode(entry["sig"], validate=True)
        except (TypeError, KeyError, ValueError, binascii.Error):
            continue
        for signer in signers:  # the key id in the envelope is only a hint, which anybody can write
            try:
                _verify(signer.key, signature, message)
            except InvalidSignature:
                continue
            return signer
    return None


def _verify(key: PublicKey, signature: bytes, message: bytes) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey

    if isinstance(key, EllipticCurvePublicKey):
        key.verify(signature, message, ECDSA(getattr(hashes, _HASHES[key.curve.name])()))
    else:
        key.verify(signature, message)


def _open_envelope(content: bytes) -> tuple[str, bytes, list[Any]]:
    try:
        body = json.loads(content)
        if "mediaType" in body:
            body = envelope_in(body)
        payload_type, payload = str(body["payloadType"]), base64.b64decode(body["payload"], validate=True)
        signatures = list(body["signatures"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise InputError("is no DSSE envelope") from None
    if len(signatures) > _MOST_SIGNATURES:
        raise InputError(f"bears {len(signatures)} signatures, and {_MOST_SIGNATURES} are tried at most")
    return payload_type, payload, signatures


def _subjects(payload_type: str, payload: bytes) -> list[frozenset[str]]:
    """The digests of a statement's subjects, in the format of reports: of the signed report, then of each of its files.

    A file that a signed report names is not itself signed as a report. Files in a statement of other tools are all in
    the first set, under the algorithm name ``_OTHERS``.
    """
    statement = _statement(payload_type, payload, PREDICATE, BUNDLE_PREDICATE)
    try:
        if statement["predicateType"] == BUNDLE_PREDICATE:
            return [frozenset(f"{_OTHERS}:{value}" for value in files_in(statement))]
        named = [frozenset(f"{name}:{value}" for name, value in e["digest"].items()) for e in statement["subject"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        named = []
    if not named:
        raise InputError("holds no statement about files")
    return named


def _line_of(log: AuditLog, named: frozenset[str]) -> Entry | None:
    """The last line of ``log`` such that the SHA-256 of all bytes up to its end is in ``named``; None if none is."""
    last = None
    hasher = sha256()
    for entry, line in zip(log.entries, log.content.splitlines(keepends=True), strict=True):
        hasher.update(line)
        last = entry if hasher.hexdigest() in named else last
    return last


def _statement(payload_type: str, payload: bytes, *predicates: str) -> Any:
    """The statement in a payload; raises InputError unless its predicate type is one of ``predicates``."""
    try:
        statement = json.loads(payload)
        kinds = payload_type, statement["_type"], statement["predicateType"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError("holds no statement about files") from None
    if kinds[:2] != (PAYLOAD_TYPE, STATEMENT) or kinds[2] not in predicates:
        raise InputError(f"is a statement of another kind: {str(kinds[2])[:60]}")
    return statement


def _signed_envelope(statement: Mapping[str, Any], key: Ed25519PrivateKey) -> bytes:
    """The envelope of ``statement``, signed with ``key``."""
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    body = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [
            {
                "keyid": _key_id(key.public_key()),
                "sig": base64.b64encode(key.sign(_signed_message(PAYLOAD_TYPE, payload))).decode(),
            }
        ],
    }
    return (json.dumps(body, indent=1) + "\n").encode()


def _signed_message(payload_type: str, payload: bytes) -> bytes:
    """The signed message: DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _digest(tagged: str) -> Mapping[str, str]:
    algorithm, _, value = tagged.partition(":")
    return {algorithm: value}


def _key_id(key: PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _loaded(path: Path, load: Any) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return load()
    except TypeError:
        raise CommandError(f"{path} is encrypted with a password; decrypt it first (openssl pkey)") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{path} holds no key in PEM form; make one with privctl sign --new-key") from None


def envelope_in(bundle: Mapping[str, Any]) -> Any:
    """The DSSE envelope in a bundle. Raises InputError, whose message continues a sentence, if there is none."""
    if bundle.get("mediaType") != _MEDIA:
        raise InputError(f"is no Sigstore bundle of version 0.3: {str(bundle.get('mediaType'))[:60]}")
    material = bundle.get("verificationMaterial")
    if not isinstance(material, dict) or "publicKey" not in material:
        raise InputError("was made without a key (keyless), which no .pub can check; use the tool that made it")
    if "dsseEnvelope" not in bundle:
        raise InputError("holds no statement about files; sign with model_signing sign key")
    return bundle["dsseEnvelope"]


def files_in(statement: Mapping[str, Any]) -> frozenset[str]:
    """The SHA-256 of every file that a statement of model-transparency lists, in hexadecimal.

    Raises InputError, whose message continues a sentence, if its overall digest is not that of the listed files;
    KeyError, TypeError or ValueError if it is not such a statement.
    """
    (subject,) = statement["subject"]
    together = sha256()
    digests = set()
    for resource in statement["predicate"]["resources"]:
        together.update(bytes.fromhex(resource["digest"]))
        if resource["algorithm"] == "sha256":
            digests.add(str(resource["digest"]).lower())
    if together.hexdigest() != subject["digest"]["sha256"]:
        raise InputError("contradicts itself: its digest is not that of the files it lists")
    return frozenset(digests)
