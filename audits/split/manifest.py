"""The manifest of a drawn split: the key that determines each coin, and the files written.

The operating system generates the key, 32 bytes. A record is a line stripped of surrounding white space, and its coin
is a bit of BLAKE3 over the line with that key. So the coin is fair and independent of the record and of all other
coins, as far as BLAKE3 is a pseudo-random function; equal lines share one coin; and whoever has the manifest can
recompute each coin. If groups are drawn, such as users, the coin is that of the group's name and shared by all of its
records; hashes of names and of lines have different prefixes, so neither kind of coin equals the other. The commitment
is BLAKE3 of the rest of the manifest, with the key, as canonical JSON: published before training, it later proves that
the key was not chosen with knowledge of the model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from blake3 import blake3

from audits.canaries.manifest import DataFile
from privctl.data.places import require_inputs
from privctl.domain.errors import InputError
from privctl.reports.codec import decode_value, encode_value
from privctl.storage.digest import tag
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import read_text

VERSION = 1
KIND = "privctl-split"
NAME, MEMBERS, NONMEMBERS, TRAIN = "manifest.json", "members.jsonl", "nonmembers.jsonl", "train.jsonl"
KEY_BYTES = 32
_OF_GROUPS = ("group_by", "groups", "included_groups", "similar_names")


class Use(StrEnum):
    """The purpose of a keyed hash of a record or a group's name; hashes of different purposes are independent."""

    COIN = "coin"
    CHOICE = "choice"
    GROUP_COIN = "group coin"
    GROUP_CHOICE = "group choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitManifest:
    """A drawn split: ``records`` different lines, of which ``included`` are members.

    ``train`` is the training file if it holds more than the members; ``source`` is the data that was split. If all
    records with the same value of ``group_by`` share a coin, ``groups`` of them were drawn, and ``included_groups`` are
    members; ``similar_names`` counts the groups of the data whose names differ only in spelling from another's, None in
    older manifests. Raises ValueError for inconsistent values.
    """

    version: int
    created: str
    key: str = field(repr=False)
    records: int
    included: int
    source: DataFile
    members: DataFile
    nonmembers: DataFile
    train: DataFile | None
    commitment: str
    group_by: str | None = None
    groups: int | None = None
    included_groups: int | None = None
    similar_names: int | None = None

    def __post_init__(self) -> None:
        try:
            key = bytes.fromhex(self.key)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise ValueError(f"key must be {KEY_BYTES} bytes in hexadecimal")
        if not 0 < self.included < self.records:
            raise ValueError(f"{self.included} of {self.records} records are members; each side needs at least one")
        if self.group_by is None and self.groups is None and self.included_groups is None:
            return
        if self.group_by is None or self.groups is None or self.included_groups is None:
            raise ValueError("group_by, groups and included_groups belong together")
        if not (0 < self.included_groups <= self.included and self.included_groups < self.groups <= self.records):
            raise ValueError(
                f"{self.included_groups} of {self.groups} groups are members, which its records contradict"
            )

    @property
    def sides(self) -> dict[str, DataFile]:
        """The two files, keyed by the options that take them."""
        return {"members": self.members, "nonmembers": self.nonmembers}


def keyed(key: bytes, use: Use, content: bytes) -> bytes:
    """The keyed hash of a record's ``content`` for one ``use``."""
    return blake3(use.encode() + b"\0" + content, key=key).digest()


def is_member(key: bytes, content: bytes, use: Use = Use.COIN) -> bool:
    """The coin of a record, or of a group by its name."""
    return bool(keyed(key, use, content)[0] & 1)


def commitment_of(manifest: SplitManifest) -> str:
    """The commitment to a manifest's content, as ``blake3:hex``."""
    body = _body(manifest)
    del body["commitment"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return tag(blake3(text.encode()))


def encode_manifest(manifest: SplitManifest) -> bytes:
    """The manifest as JSON."""
    return (json.dumps({"kind": KIND, **_body(manifest)}, indent=2, ensure_ascii=False) + "\n").encode()


def _body(manifest: SplitManifest) -> dict[str, Any]:
    """The manifest's fields, without those of groups if not stated, so that older commitments remain valid."""
    body = encode_value(manifest)
    return {name: value for name, value in body.items() if value is not None or name not in _OF_GROUPS}


def read_manifest(path: Path) -> SplitManifest:
    """The manifest at ``path``. Raises InputError for anything else, and for one that was changed."""
    source = str(path)
    data = parse_json(read_text(path), source)
    if not isinstance(data, dict) or data.pop("kind", None) != KIND:
        raise InputError(f"{source} is not the manifest of a split; give the {NAME} that privctl audit split wrote")
    if data.get("version") != VERSION:
        raise InputError(
            f"{source} has version {shown(data.get('version'))}; this privctl reads version {VERSION} of splits"
        )
    manifest = decode_value(SplitManifest, data, source, "manifest")
    if commitment_of(manifest) != manifest.commitment:
        raise InputError(
            f"{source} was changed after the split was drawn; give the file that privctl audit split wrote"
        )
    return manifest


def manifest_at(path: Path) -> Path:
    """The manifest that ``path`` names, itself or by its folder. Raises InputError if there is none."""
    place = path / NAME if path.is_dir() else path
    require_inputs(place)
    return place
