"""The manifest of planted canaries: the secrets, the coins, and the hash that commits to all of it.

The commitment is BLAKE3 of the 32 random bytes of ``salt`` and of the rest of the manifest as canonical JSON (keys
sorted, no spaces, ASCII). Published before training, it later proves that neither the coins nor the secrets nor the
numbers of guesses were chosen with knowledge of the model; the salt keeps it from revealing the coins.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from blake3 import blake3

from audits.canaries.formats import CanaryFormat
from privctl.domain.checks import fraction
from privctl.domain.errors import InputError
from privctl.reports.codec import decode_value, encode_value
from privctl.storage.digest import tag
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import read_text

VERSION = 1
_SALT_BYTES = 32
_KIND = "privctl-canaries"


class Coins(StrEnum):
    """The source of the coins: the operating system's generator, or a given seed (for tests)."""

    OPERATING_SYSTEM = "operating-system"
    SEED = "seed"


class RecordFields(StrEnum):
    """The fields of the data's records."""

    TEXT = "text"
    PAIR = "prompt-response"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file: ``digest`` of its bytes, ``content`` of its decompressed bytes, and number of records."""

    name: str
    digest: str
    content: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """How many canaries will be guessed as included and as left out, among those of at most ``copies`` copies.

    ``canaries`` is the number of those. All sets are fixed before training, and each has an equal share of the allowed
    failure probability. If ``divided``, every canary is guessed, and the scores alone decide the threshold. Raises
    ValueError for inconsistent numbers.
    """

    copies: int
    canaries: int
    included: int
    excluded: int
    divided: bool = False

    def __post_init__(self) -> None:
        if min(self.copies, self.canaries) < 1 or min(self.included, self.excluded) < 0:
            raise ValueError("numbers of copies and canaries must be at least 1, numbers of guesses at least 0")
        if not 1 <= self.included + self.excluded <= self.canaries:
            raise ValueError(f"{self.included} and {self.excluded} guesses do not fit {self.canaries} canaries")
        if self.divided and self.guesses != self.canaries:
            raise ValueError(f"{self.guesses} guesses on {self.canaries} canaries are not all that can be divided")

    @property
    def guesses(self) -> int:
        """The total number of guesses."""
        return self.included + self.excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One canary; ``prefix`` is everything before the secret in the text as a model reads it.

    ``format`` is an index into the manifest's formats. ``copies`` copies were planted if ``included``, otherwise none.
    """

    format: int
    prefix: str
    secret: str
    copies: int
    included: bool

    def __post_init__(self) -> None:
        if self.copies < 1 or self.format < 0 or not self.secret:
            raise ValueError("a canary needs a secret, a format and at least one copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything known about one set of planted canaries; ``delta`` is that of the later bounds.

    Raises ValueError for inconsistent values.
    """

    version: int
    created: str
    coins: Coins
    shape: RecordFields
    delta: float
    guesses: tuple[Guesses, ...]
    formats: tuple[CanaryFormat, ...]
    source: DataFile
    planted: DataFile
    salt: str
    commitment: str
    canaries: tuple[Canary, ...]

    def __post_init__(self) -> None:
        fraction("delta", self.delta, zero=True)
        if not self.canaries or not self.guesses:
            raise ValueError("there are no canaries, or no numbers of guesses")
        if any(canary.format >= len(self.formats) for canary in self.canaries):
            raise ValueError(f"a canary has a format beyond the {len(self.formats)} listed")
        for group in self.guesses:
            within = sum(canary.copies <= group.copies for canary in self.canaries)
            if within != group.canaries:
                raise ValueError(f"{within} canaries have at most {group.copies} copies, not {group.canaries}")
        try:
            salt = bytes.fromhex(self.salt)
        except ValueError:
            salt = b""
        if len(salt) != _SALT_BYTES:
            raise ValueError(f"salt must be {_SALT_BYTES} bytes in hexadecimal")

    def text(self, canary: Canary) -> str:
        """The complete text of a canary, as a model reads it."""
        return canary.prefix + canary.secret + self.formats[canary.format].after

    def line(self, canary: Canary) -> bytes:
        """One copy as a line of the data."""
        if self.shape is RecordFields.TEXT:
            data = {"text": self.text(canary)}
        else:
            data = {"prompt": canary.prefix[:-1], "response": self.text(canary)[len(canary.prefix) :]}
        return json.dumps(data, ensure_ascii=False).encode() + b"\n"


def commitment_of(manifest: Manifest) -> str:
    """The commitment to a manifest's content, as ``blake3:hex``."""
    body = encode_value(manifest)
    del body["commitment"], body["salt"]
    for guesses in body["guesses"]:
        if not guesses["divided"]:
            del guesses["divided"]  # the commitments of older manifests do not include it
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return tag(blake3(bytes.fromhex(manifest.salt) + text.encode()))


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON, with one line per key, canary and format."""
    lines = []
    for name, value in {"kind": _KIND, **encode_value(manifest)}.items():
        if name in ("formats", "canaries"):
            rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in value)
            lines.append(f"{json.dumps(name)}: [\n{rows}\n  ]")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}")
    return ("{\n  " + ",\n  ".join(lines) + "\n}\n").encode()


def read_manifest(path: Path) -> Manifest:
    """The manifest at ``path``, whose commitment is not yet checked. Raises InputError for anything else."""
    source = str(path)
    text = read_text(path)
    try:
        data = parse_json(text, source)
    except InputError as error:
        raise InputError(f"{error}; give the manifest of canaries that privctl canary plant wrote") from None
    if not isinstance(data, dict) or data.pop("kind", None) != _KIND:
        raise InputError(f"{source} is not a manifest of canaries; give the one that privctl canary plant wrote")
    if data.get("version") != VERSION:
        raise InputError(
            f"{source} has version {shown(data.get('version'))}; this privctl reads version {VERSION} of manifests"
        )
    return decode_value(Manifest, data, source, "manifest")
