"""The privacy report: the versioned envelope that every step reads and writes.

Digests are ``algorithm:hex`` (currently BLAKE3, as ``b3sum`` prints it), so that another algorithm can be added later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Guarantee
from privctl.domain.mechanism import Mechanism
from privctl.domain.notebook import Shown
from privctl.domain.verdict import Verdict

SCHEMA_VERSION = 1
#: The steps that write reports.
STEPS = frozenset({
    "account", "audit", "claims", "external-training", "inspect", "noise", "replay", "retrain", "secrets-plan",
    "secrets-scan", "shadow", "verify",
})  # fmt: skip
#: Steps that train a model, and prefixes of the roles of the files with the weights that they began with.
TRAININGS, BEGUN_WITH = ("retrain", "external-training"), ("start-", "base-")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigest:
    """One tensor's identity: the digest of its little-endian bytes, independent of the file it lies in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file a step read or wrote; ``path`` is relative to the report, with forward slashes."""

    role: str
    path: str
    digest: str
    bytes: int
    tensors: tuple[TensorDigest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentReport:
    """An earlier report whose outputs this step used."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """Where an audit stands in the log of audits at ``path``: the line ``entry``, from 1, and the digest it ends in."""

    path: str
    entry: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """Something a reader may expect here that was left out, and why."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyReport(Shown):
    """What one step did, to which bytes, and what may be said of the result.

    ``created`` is UTC, ISO 8601. ``parameters`` holds the step's settings under the names of its options. ``log`` is
    the entry that an audit made in the log of audits before it began.
    """

    step: str
    created: str
    versions: Mapping[str, str]
    schema_version: int = SCHEMA_VERSION
    inputs: tuple[Artifact, ...] = ()
    outputs: tuple[Artifact, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    mechanism: Mechanism | None = None
    guarantees: tuple[Guarantee, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    omissions: tuple[Omission, ...] = ()
    warnings: tuple[str, ...] = ()
    parents: tuple[ParentReport, ...] = ()
    log: LogPosition | None = None


class Reports(tuple[PrivacyReport, ...], Shown):
    """Several reports of one run, in order."""

    __slots__ = ()
