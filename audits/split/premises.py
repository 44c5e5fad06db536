"""The premises of conclusions from a drawn split: checked here, stated by the model's report, or asserted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from audits.split.drawn import DrawnSplit
from privctl.domain.verdict import Outcome, Verdict


def split_parameters(split: DrawnSplit) -> dict[str, Any]:
    """The parameters of the split for the report."""
    drawn = split.manifest
    groups = {} if drawn.groups is None else {"split_groups": drawn.groups}
    return {"split_commitment": drawn.commitment, "split_records": drawn.records, **groups}


def premises(split: DrawnSplit, trained_on: Sequence[str] | None) -> list[str]:
    """The premises about split and training; ``trained_on`` are the digests named by the model's report, if any."""
    drawn, file = split.manifest, split.trained_on.name
    members, coin = f"{drawn.included} of {drawn.records} records are members", "its coin"
    if drawn.group_by is not None:
        members = f"{drawn.included_groups} of {drawn.groups} groups of records with one value of {drawn.group_by!r}"
        members, coin = f"{members} are members", "its group's coin, and no group was drawn in part"
    return [
        f"privctl drew the split: by coins of the key in {split.path.name}, {members}. "
        f"Checked: both files have the digests in it, and each record is on the side of {coin}. "
        f"Not checked: that the commitment, {drawn.commitment}, was published before training",
        f"that the model was trained on {file}, and on none of {drawn.nonmembers.name}, is {_basis(split, trained_on)}",
    ]


def of_training(judgement: Verdict, split: DrawnSplit, trained_on: Sequence[str] | None) -> Verdict:
    """``judgement``, or inconclusive if the model's report names other training data than the split's."""
    if trained_on is None or set(trained_on) == {split.trained_on.digest}:
        return judgement
    return replace(
        judgement,
        outcome=Outcome.INCONCLUSIVE,
        reason=f"no attack found a difference, but the model's report names other training data than "
        f"{split.trained_on.name} of the split; audit the model that was trained on it",
    )


def _basis(split: DrawnSplit, trained_on: Sequence[str] | None) -> str:
    if trained_on is None:
        return "what the caller asserts"
    if set(trained_on) == {split.trained_on.digest}:
        return "what its training report says, by the file's digest"
    return "contradicted by its training report, which names other data; nothing can be concluded from finding nothing"
