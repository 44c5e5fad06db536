"""Signatures that Sigstore's model-transparency made with a key: what such a bundle holds, and which files it names.

A bundle (https://github.com/sigstore/protobuf-specs, version 0.3) wraps a DSSE envelope; the statement in it
(https://model_signing/signature/v1.0) lists files by SHA-256 under one digest of all. A bundle made without a key
(keyless) holds a certificate and a proof of a public log instead; those are for the tool that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from privctl.domain.errors import InputError

PREDICATE = "https://model_signing/signature/v1.0"
#: A bundle lies beside what it signs, under this ending.
SUFFIX = ".sigstore.json"
_MEDIA = "application/vnd.dev.sigstore.bundle.v0.3+json"


def envelope_in(bundle: Mapping[str, Any]) -> Any:
    """The DSSE envelope in a bundle. Raises InputError, with the end of a sentence, where it holds none for a key."""
    if bundle.get("mediaType") != _MEDIA:
        raise InputError(f"is no Sigstore bundle of version 0.3: {str(bundle.get('mediaType'))[:60]}")
    material = bundle.get("verificationMaterial")
    if not isinstance(material, dict) or "publicKey" not in material:
        raise InputError("was made without a key (keyless), which no .pub can check; use the tool that made it")
    if "dsseEnvelope" not in bundle:
        raise InputError("holds no statement about files; sign with model_signing sign key")
    return bundle["dsseEnvelope"]


def files_in(statement: Mapping[str, Any]) -> frozenset[str]:
    """SHA-256 of every file that a statement of model-transparency names, in hexadecimal.

    Raises InputError, with the end of a sentence, where its one digest is not that of the files it lists; KeyError,
    TypeError or ValueError where it is no such statement.
    """
    (subject,) = statement["subject"]
    together = sha256()
    found = set()
    for each in statement["predicate"]["resources"]:
        together.update(bytes.fromhex(each["digest"]))
        if each["algorithm"] == "sha256":
            found.add(str(each["digest"]).lower())
    if together.hexdigest() != subject["digest"]["sha256"]:
        raise InputError("contradicts itself: its digest is not that of the files it lists")
    return frozenset(found)
