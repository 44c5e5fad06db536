"""What a membership audit states besides its evidence: how to read it, and what was left out, cut, or looks odd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from audits.membership.attack import Settings
from audits.membership.groups import Grouping
from audits.scores.table import ScoreTable
from audits.scores.tasks import AUDIO_CLASSIFICATION
from privctl.data.names import alike
from privctl.domain.evidence import Evidence
from privctl.domain.report import Omission
from privctl.domain.shown import counted

#: What to check if members look less like training data than non-members.
SWAPPED = "check that the two files were not swapped and come from one source"
LOSSES = "a higher score must mean more likely a member: negate losses, and check who is marked as a member"
_SIDES = {True: "member", False: "nonmember"}


def of_groups(grouping: Grouping, records: Mapping[str, int], groups: Mapping[str, int]) -> Iterator[str]:
    """The units if ``groups`` of ``records``, both by side, are judged, and which names may be the same."""
    yield (
        f"what is counted are groups of records with one value of {grouping.field!r}: "
        f"{counted(groups['members'], 'group')} of {counted(records['members'], 'member')} and "
        f"{counted(groups['nonmembers'], 'group')} of "
        f"{counted(records['nonmembers'], 'non-member')}, each with one score from an attack. Groups, not records, are "
        "taken to be independent of each other"
    )
    if grouping.similar:
        yield alike(grouping.similar, grouping.field)


def caveats(attacks: Sequence[str], intervals: int, settings: Settings, alpha: float) -> list[str]:
    """How to read the evidence of ``attacks``; ``intervals`` are reported, and the joint test has level ``alpha``."""
    names = ", ".join(attacks)
    tried = counted(len(attacks), "attack was", "attacks were")
    return [
        f"{tried} tried ({names}). Whether any does better than chance is decided by one permutation test over all "
        f"of them, which errs at most {100 * alpha:.3g} times in 100 if both files were drawn alike",
        f"{counted(intervals, 'interval')} of AUC, TPR and the like only say how large the differences are; each "
        f"holds at {100 * settings.confidence:.4g} %, so that all hold together at the audit's confidence",
        "a stronger attack may find what these did not",
    ]


def data_warnings(table: ScoreTable, max_length: int | None, task: str, *, grouped: bool) -> list[str]:
    """Which records were left out, and how many were cut to ``max_length`` tokens, or samples of sounds.

    The rows of a ``grouped`` table are groups, of which some records were cut.
    """
    warnings = [
        f"left out: {counted(count, _SIDES[member])}, {skip.reason}"
        for (member, skip), count in table.skip_counts().items()
    ]
    cut = int(table.truncated.sum())
    if cut:
        what = "samples" if task == AUDIO_CLASSIFICATION else "tokens"
        some = f"some records of {cut} of {counted(table.records, 'group')}"
        all_of = some if grouped else f"{cut} of {counted(table.records, 'record')}"
        warnings.append(f"cut to their first {max_length} {what}: {all_of}")
    return warnings


def omissions(table: ScoreTable) -> list[Omission]:
    """The records left out, as omissions."""
    return [
        Omission(what=counted(count, _SIDES[member]), reason=skip.reason)
        for (member, skip), count in table.skip_counts().items()
    ]


def backwards_warnings(evidence: Sequence[Evidence], check: str = SWAPPED) -> list[str]:
    """Warn about AUCs below chance. They suggest a problem in the data, so the scores are not silently negated."""
    return [
        f"{item.method}: the {item.quantity} lies below {item.details['chance']:g}, so members look less like training "
        f"data than non-members; {check}"
        for item in evidence
        if item.quantity == "AUC" and item.upper is not None and item.upper < item.details["chance"]
    ]
