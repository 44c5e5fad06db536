"""Every warning of an audit of membership, drawn splits and groups; ``of_audits`` has those of all audits."""

from __future__ import annotations

import re

from verify.texts.warnings.forms import ALIKE_USERS, COUNT, NAME, NUMBER, QUOTED, either, form

ASSERTED = form(
    "membership is what the caller asserts: records of {name} are taken to be training data, and those of {name} not",
    name=NAME,
)
_DRAWN = (
    "privctl drew the split: by coins of the key in {name}, {members} are members. Checked: both files have the "
    "digests in it, and each record is on the side of {coin}. Not checked: that the commitment, {commitment}, was "
    "published before training"
)
TRAINED_ON = form(
    "that the model was trained on {name}, and on none of {name}, is {said}",
    name=NAME, said="what the caller asserts|what its training report says, by the file's digest|contradicted by its "
    "training report, which names other data; nothing can be concluded from finding nothing",
)  # fmt: skip
_TRIED = (
    "{attacks} tried ({names}). Whether any does better than chance is decided by one permutation test over all of "
    "them, which errs at most {number} times in 100 if both files were drawn alike"
)
INTERVALS = form(
    "{intervals} of AUC, TPR and the like only say how large the differences are; each holds at {number} %, so that "
    "all hold together at the audit's confidence",
    intervals=either("interval"), number=NUMBER,
)  # fmt: skip
STRONGER = form("a stronger attack may find what these did not")
_GROUPS = (
    "what is counted are groups of records with one value of {field}: {group} of {member} and {group} of {nonmember}, "
    "each with one score from an attack. Groups, not records, are taken to be independent of each other"
)
_BACKWARDS = "{method}: the AUC lies below {chance}, so members look less like training data than non-members; {check}"
_CHECKS = (
    "check that the two files were not swapped and come from one source|a higher score must mean more likely a member: "
    "negate losses, and check who is marked as a member"
)
NOT_MADE = "{guesses} not made for {bounds}, because scores were tied or missing; they count as wrong"
_GUESSES = r"1 guess was|\d+ guesses were"
_REASONS = (
    "of too few tokens for one to be predicted|repeating an earlier record of their file|occurring among members and "
    "non-members alike|given NaN or infinite scores by the model|put aside for attacks that put such records in front "
    "of others|with a text that several groups of the split have|repeated, while others occur in both files"
)


def tried(attacks: tuple[str, ...] | None) -> str:
    """The warning on the ``attacks`` that were tried; any attacks for None."""
    if attacks is None:
        return form(_TRIED, attacks=r"1 attack was|\d+ attacks were", names=NAME, number=NUMBER)
    count = "1 attack was" if len(attacks) == 1 else f"{len(attacks)} attacks were"
    return form(_TRIED, attacks=count, names=re.escape(", ".join(attacks)), number=NUMBER)


def drawn(commitment: str | None) -> str:
    """The warning that the split was drawn, with this ``commitment``; any commitment for None."""
    return form(
        _DRAWN, name=NAME,
        members=rf"\d+ of \d+ (?:records|groups of records with one value of {QUOTED})",
        coin="its coin|its group's coin, and no group was drawn in part",
        commitment=r"[a-z0-9]+:[0-9a-f]+" if commitment is None else re.escape(commitment),
    )  # fmt: skip


def groups(field: str | None) -> str:
    """The warning that groups with one value of ``field`` are counted; any field for None."""
    return form(
        _GROUPS, field=QUOTED if field is None else re.escape(repr(field)), group=either("group"),
        member=either("member"), nonmember=either("non-member"),
    )  # fmt: skip


def backwards(method: str | None, chance: float | None) -> str:
    """The warning that the AUC of ``method`` lies below ``chance``; any for None."""
    return form(
        _BACKWARDS, method=NAME if method is None else re.escape(method),
        chance=NUMBER if chance is None else re.escape(f"{chance:g}"), check=_CHECKS,
    )  # fmt: skip


#: The text of each warning by name, as a regular expression for the whole text.
TEXTS: dict[str, str] = {
    "asserted membership": ASSERTED,
    "drawn split": drawn(None),
    "trained on members": TRAINED_ON,
    "attacks tried": tried(None),
    "intervals": INTERVALS,
    "stronger attack": STRONGER,
    "groups": groups(None),
    "users spelled alike": ALIKE_USERS,
    "left out": form("left out: {side}, {why}", side=f"{either('member')}|{either('nonmember')}", why=_REASONS),
    "cut": form(
        "cut to their first {n} {what}: {cut}", n=COUNT + "|None", what="tokens|samples",
        cut=rf"{COUNT} of {either('record')}|some records of {COUNT} of {either('group')}",
    ),
    "backwards": backwards(None, None),
    "guesses not made": form(NOT_MADE, guesses=_GUESSES, bounds="the bounds"),
    "guesses not made for a bound": form(NOT_MADE, guesses=_GUESSES, bounds="the bound on .{1,200}"),
}  # fmt: skip
