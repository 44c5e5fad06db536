"""The request for one audit: its model, its parts, their settings, and its outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from audits.canaries.audit import CanaryRequest
from audits.claims import EpsilonClaim
from audits.extraction.request import ExtractionRequest
from audits.membership.request import MembershipRequest
from audits.secrets.audit import SecretRequest
from privctl.data.columns import USUAL, Columns
from privctl.data.several import DataPath, paths_of
from privctl.domain.errors import CommandError
from privctl.models.choices import FloatFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What to audit, and where to write the ``report`` and its ``scores``; ``force`` replaces existing files."""

    model: Path
    report: Path
    scores: Path
    membership: MembershipRequest | None = None
    canaries: CanaryRequest | None = None
    extraction: ExtractionRequest | None = None
    secrets: SecretRequest | None = None
    claim: EpsilonClaim | None = None
    reference: Path | None = None
    #: The model before training, for the attack on secrets; for an adapter, also the model it is loaded on.
    base: Path | None = None
    #: 4 loads the base of an adapter, and a base that it is compared with, in 4 bits.
    base_bits: int | None = None
    #: The precision of all models' forward passes; None means float32, on a GPU the audited model's own format.
    precision: FloatFormat | None = None
    #: The cache of scores between audits; None keeps none.
    cache: Path | None = None
    task: str | None = None
    max_length: int | None = None
    resize: tuple[int, int] | None = None
    columns: Columns = USUAL
    device: str | None = None
    force: bool = False
    #: The log of audits; None writes no entry.
    log: Path | None = None
    #: The file of each training record's scores, readable by the owner only; None writes none.
    leaks: Path | None = None

    @property
    def written(self) -> tuple[Path, ...]:
        """The audit's output files except its log."""
        return (self.report, self.scores, *(() if self.leaks is None else (self.leaks,)))

    @property
    def files(self) -> dict[str, DataPath]:
        """The data files that this audit reads, by role."""
        files: dict[str, DataPath | None] = {}
        if self.membership is not None:
            files |= {"members": self.membership.members, "nonmembers": self.membership.nonmembers}
            files |= {"split": self.membership.split}
        if self.canaries is not None:
            files |= {"canaries": self.canaries.manifest, "planted": self.canaries.planted}
        if self.extraction is not None:
            files |= {"train": self.extraction.train, "heldout": self.extraction.heldout}
            files |= {"split": self.extraction.split or files.get("split")}
            files |= {"prompts": None if self.extraction.untargeted is None else self.extraction.untargeted.prompts}
        if self.secrets is not None:
            files |= {"secrets": self.secrets.secrets, "data": self.secrets.data, "plan": self.secrets.plan}
            files |= {"canaries": self.secrets.manifest or files.get("canaries")}
            if self.secrets.held_out is not None:
                held_out = self.secrets.held_out
                files |= {"heldout secrets": held_out.book, "heldout data": held_out.data}
        return {role: path for role, path in files.items() if path is not None}

    @property
    def of_drawn_split(self) -> bool:
        """Whether the members are those of a split drawn by privctl."""
        return self.membership is not None and self.membership.split is not None

    def claims_beside(self, stated: tuple[EpsilonClaim, ...]) -> tuple[EpsilonClaim, ...]:
        """All claims to test: the one given, applied to the records or groups that are counted, and ``stated``."""
        if self.claim is None:
            return stated
        groups = self.membership.group_by if self.membership is not None and self.of_drawn_split else None
        return (replace(self.claim, unit=groups), *stated)


def require_distinct(request: AuditRequest) -> None:
    """Raise CommandError if an output is an input or another output, or if an input can be read only once."""
    read = [request.model, *(path for data in request.files.values() for path in paths_of(data))]
    require_kept(read)
    inputs = {*map(os.path.realpath, read)}
    outputs = (
        ("--output", request.report), ("--output", request.scores), ("--log", request.log), ("--leaks", request.leaks)
    )  # fmt: skip
    for flag, path in outputs:
        if path is not None and os.path.realpath(path) in inputs:
            raise CommandError(f"{path} is an input of this audit; choose another {flag}")
    written = {os.path.realpath(request.report), os.path.realpath(request.scores)}
    if request.log is not None and os.path.realpath(request.log) in written:
        raise CommandError(f"{request.log} is named as the log and as an output; choose another --log")
    written |= set() if request.log is None else {os.path.realpath(request.log)}
    if request.leaks is not None and os.path.realpath(request.leaks) in written:
        raise CommandError(f"{request.leaks} is another output of this audit; choose another --leaks")


def require_kept(read: Sequence[Path]) -> None:
    """Raise CommandError if one of the paths ``read`` is neither a file nor a folder."""
    for path in read:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CommandError(
                f"{path} is a device or a pipe, which can be read only once, so that nothing would show which records "
                "were audited; give a file"
            )
