"""The records that leak most, and what would change if those that repeat or stand out went."""

from __future__ import annotations

from collections.abc import Sequence

from privctl.domain.leaking import LeakingRecord, Why, separation
from privctl.domain.shown import counted
from privctl.show.text.style import number, paragraph, table

#: Records that are listed, and attacks whose scores fit beside them.
_RECORDS, _ATTACKS = 10, 5


def leaking_table(records: Sequence[LeakingRecord], *, verbose: bool) -> str:
    """A table of the first of ``records``, which leak most; without ``verbose`` only where to find it."""
    if not verbose:
        return paragraph("Which records leak most: --verbose lists ten, --leaks FILE writes all, by line number.")
    shown = records[:_RECORDS]
    attacks = list(dict.fromkeys(attack for record in shown for attack in record.scores))[:_ATTACKS]
    explained = ["why"] if any(record.reasons for record in shown) else []
    sized = ["records"] if any(record.records is not None for record in shown) else []
    rows = [
        (
            record.file,
            str(record.line),
            *("-" if record.records is None else str(record.records) for _ in sized),
            "elsewhere" if record.known_elsewhere else {True: "yes", False: "no", None: "-"}[record.extracted],
            *(number(record.scores.get(attack), 3) for attack in attacks),
            number(next(iter(record.nonmembers_as_high.values()), None), 3),
            *(", ".join(reason.why for reason in record.reasons) or "-" for _ in explained),
        )
        for record in shown
    ]
    text = table(("file", "line", *sized, "word for word", *attacks, "as high", *explained), rows)
    if attacks:
        text += paragraph(
            f"The {len(shown)} {'groups' if sized else 'records'} that leak most, with their scores; as high: the "
            "share of non-members whose score by the first attack is at least as high. --leaks FILE writes all of "
            "them, by all attacks.",
            indent=2, hanging=2,
        )  # fmt: skip
    return text


def if_leaking_went(records: Sequence[LeakingRecord]) -> str:
    """What would change without the records that repeat, or without records or groups that stand out; maybe nothing."""
    if any(record.records is not None for record in records):
        return _if_they_went(
            records, "groups", "Copies and shared records are what deduplicating would remove. That is"
        )
    stands_out = any(not reason.why.repeats for record in records for reason in record.reasons)
    return _if_repetitions_went(records) + (_if_they_went(records, "members", "It is") if stands_out else "")


def _if_repetitions_went(records: Sequence[LeakingRecord]) -> str:
    """How well an attack separates repeated members, and what leaving them out would change at best."""
    repeated = [record for record in records if any(reason.why.repeats for reason in record.reasons)]
    if not repeated or len(repeated) == len(records):
        return ""
    attack = next(iter(repeated[0].nonmembers_as_high), "")
    gone = {(record.file, record.line) for record in repeated}
    others = [record for record in records if (record.file, record.line) not in gone]
    before, alone, after = (separation(some, attack) for some in (records, repeated, others))
    if before is None or alone is None or after is None:
        return ""
    area = [number(each.auc, 3) for each in (alone, after, before)]
    rate = [number(100 * each.tpr, 3) for each in (alone, after, before)]
    who = counted(alone.records, "member is repeated", "members are repeated")
    return "\n" + paragraph(
        f"{who} among the members, wholly or nearly (--leaks FILE says which): {attack} AUC {area[0]}, and {rate[0]} % "
        f"of them lie beyond 99 % of the non-members. Without them the AUC of all would be {area[1]} in place of "
        f"{area[2]}, and {rate[1]} % in place of {rate[2]} % would lie beyond. That is a prediction from these scores, "
        "not a training without them, which may expose others more."
    )


def _if_they_went(records: Sequence[LeakingRecord], who: str, remark: str) -> str:
    """By reason, how well an attack separates the records that stand out, and the rest; empty if none stands out."""
    attack = next((name for record in records for name in record.nonmembers_as_high), "")
    whole = separation(records, attack)
    rows = []
    for why in Why:
        those = [record for record in records if any(reason.why is why for reason in record.reasons)]
        others = [record for record in records if all(reason.why is not why for reason in record.reasons)]
        alone, after = separation(those, attack), separation(others, attack)
        if alone is not None and after is not None:
            shown = [(number(each.auc, 3), f"{number(100 * each.tpr, 3)} %") for each in (alone, after)]
            rows.append((str(why), str(alone.records), *shown[0], *shown[1]))
    if whole is None or not rows:
        return ""
    return (
        "\n"
        + table((f"{who} with", "number", "their AUC", "beyond 99 %", "AUC of the others", "beyond 99 %"), rows)
        + paragraph(
            f"How well {attack} tells these {who}, and the others if they were removed, where it tells all with an "
            f"AUC of {number(whole.auc, 3)}; beyond 99 %: the share that scores higher than 99 % of the non-members. "
            f"{remark} a prediction from these scores, not a training without them, which may expose others more.",
            indent=2,
            hanging=2,
        )
    )
