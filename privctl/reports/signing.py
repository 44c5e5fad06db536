"""Signed reports: a DSSE envelope beside a report says who vouches for it and for the files it wrote.

The envelope (https://github.com/secure-systems-lab/dsse, version 1) holds an in-toto Statement v1 whose subjects are
the report and every file among its outputs, by digest. Keys are Ed25519 (RFC 8032). A signature shows who spoke;
whether it is true is for ``privctl verify``.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.domain.errors import InputFault, UsageFault
from privctl.domain.report import PrivacyReport
from privctl.reports.files import REPORT_SUFFIX
from privctl.storage.atomic import PendingFile
from privctl.storage.commit import commit_together

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
#: A name of our own that needs no server (RFC 4151).
PREDICATE = "tag:privctl,2026:signed-report/v1"
ENVELOPE_SUFFIX = ".dsse.json"
PRIVATE_SUFFIX, PUBLIC_SUFFIX = ".key", ".pub"
#: No envelope or key is larger.
LARGEST = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A public key, with the file it was read from."""

    path: Path
    key: Ed25519PublicKey

    @property
    def key_id(self) -> str:
        """SHA-256 of the key's DER form, in hexadecimal."""
        return _key_id(self.key)


def envelope_path(report: Path) -> Path:
    """Where the envelope of the report at ``report`` lies: beside it, under its name."""
    suffix = REPORT_SUFFIX if report.name.endswith(REPORT_SUFFIX) else ".json"
    return report.with_name(report.name.removesuffix(suffix) + ENVELOPE_SUFFIX)


def make_keys(stem: Path) -> tuple[Path, Path]:
    """A new pair in ``stem.key``, its owner's alone, and ``stem.pub``; raises UsageFault where one exists."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private, public = (stem.with_name(stem.name + suffix) for suffix in (PRIVATE_SUFFIX, PUBLIC_SUFFIX))
    with PendingFile(private) as secret, PendingFile(public, public=True) as shown:
        secret.write_at(0, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        shown.write_at(0, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        commit_together([secret, shown], replace=False)
    return private, public


def private_key(path: Path, content: bytes) -> Ed25519PrivateKey:
    """The key in ``content``, read from ``path``; raises InputFault where it is no unencrypted Ed25519 key in PEM."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _loaded(path, lambda: load_pem_private_key(content, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise InputFault(f"{path} holds another kind of key; make an Ed25519 key with privctl sign --new-key")
    return key


def signer(path: Path, content: bytes) -> Signer:
    """The public key in ``content``, read from ``path``; raises InputFault where it is no Ed25519 key in PEM."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _loaded(path, lambda: load_pem_public_key(content))
    if not isinstance(key, Ed25519PublicKey):
        raise InputFault(f"{path} holds another kind of key; expected the .pub of an Ed25519 key")
    return Signer(path=path, key=key)


def envelope(report: PrivacyReport, name: str, content: bytes, digest: str, key: Ed25519PrivateKey) -> bytes:
    """A DSSE envelope over the report called ``name``, whose bytes are ``content`` with BLAKE3 ``digest``."""
    subjects = [{"name": name, "digest": {**_digest(digest), "sha256": sha256(content).hexdigest()}}]
    subjects += [{"name": artifact.path, "digest": _digest(artifact.digest)} for artifact in report.outputs]
    statement = {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {"step": report.step, "created": report.created, "parents": [p.digest for p in report.parents]},
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    body = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [
            {
                "keyid": _key_id(key.public_key()),
                "sig": base64.b64encode(key.sign(_encoded(PAYLOAD_TYPE, payload))).decode(),
            }
        ],
    }
    return (json.dumps(body, indent=1) + "\n").encode()


def signed_by(content: bytes, signers: Sequence[Signer], report: PrivacyReport, digest: str) -> Signer:
    """Who among ``signers`` signed the report of ``digest``, by the envelope in ``content``.

    Raises InputFault, with the end of a sentence about the envelope, where it is none, is about other files, or bears
    no signature of theirs.
    """
    payload_type, payload, signatures = _opened(content)
    found = _signature(_encoded(payload_type, payload), signatures, signers)
    if found is None:
        names = ", ".join(str(each.path) for each in signers)
        raise InputFault(f"bears no valid signature by {names}")
    named = set(_subjects(payload_type, payload))
    wanted = {digest, *(artifact.digest for artifact in report.outputs)}
    if not wanted <= named:
        raise InputFault("is a signature of other files: their digests differ")
    return found


def _signature(message: bytes, signatures: Iterable[Any], signers: Sequence[Signer]) -> Signer | None:
    from cryptography.exceptions import InvalidSignature

    for entry in signatures:
        try:
            signature = base64.b64decode(entry["sig"], validate=True)
        except (TypeError, KeyError, ValueError, binascii.Error):
            continue
        for each in signers:  # the key's name in the envelope is a hint that anybody can write
            try:
                each.key.verify(signature, message)
            except InvalidSignature:
                continue
            return each
    return None


def _opened(content: bytes) -> tuple[str, bytes, list[Any]]:
    try:
        body = json.loads(content)
        payload_type, payload = str(body["payloadType"]), base64.b64decode(body["payload"], validate=True)
        signatures = list(body["signatures"])
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
        raise InputFault("is no DSSE envelope") from None
    return payload_type, payload, signatures


def _subjects(payload_type: str, payload: bytes) -> Iterable[str]:
    """Digests of what a statement is about, as reports write them."""
    try:
        statement = json.loads(payload)
        kind = payload_type, statement["_type"], statement["predicateType"]
        if kind != (PAYLOAD_TYPE, STATEMENT, PREDICATE):
            raise InputFault(f"is a statement of another kind: {str(kind[2])[:60]}")
        return [f"{name}:{value}" for each in statement["subject"] for name, value in each["digest"].items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputFault("holds no statement about files") from None


def _encoded(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, which is what is signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _digest(tagged: str) -> Mapping[str, str]:
    algorithm, _, value = tagged.partition(":")
    return {algorithm: value}


def _key_id(key: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _loaded(path: Path, load: Any) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return load()
    except TypeError:
        raise UsageFault(f"{path} is encrypted with a password; decrypt it first (openssl pkey)") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputFault(f"{path} holds no key in PEM form; make one with privctl sign --new-key") from None
