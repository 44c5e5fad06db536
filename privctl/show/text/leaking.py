"""The records that leak most, and what removing repeated or outlying records would change."""

from __future__ import annotations

from collections.abc import Sequence

from privctl.domain.leaking import LeakingRecord, Why, separation
from privctl.domain.shown import counted
from privctl.show.text.style import number, paragraph, table

#: Most records that are listed, and most attacks whose scores are shown.
_RECORDS, _ATTACKS = 10, 5


def leaking_table(records: Sequence[LeakingRecord], *, verbose: bool) -> str:
    """A table of the first ten of ``records``, sorted by leakage; without ``verbose``, a sentence on how to get it."""
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
            f"The {_listed(len(shown), 'group' if sized else 'record')}; as high: the "
            "share of non-members whose score in the first attack is at least as high. Without any leak about one "
            "in ten would have a share of at most 0.1, one in a hundred of at most 0.01; with n non-members, one in "
            f"n + 1 has a share of 0 by chance. --leaks FILE writes all {'groups' if sized else 'records'}, with all "
            "attacks.",
            indent=2, hanging=2,
        )  # fmt: skip
    return text


def _listed(count: int, unit: str) -> str:
    return (
        f"{unit} that leaks most, with its scores"
        if count == 1
        else f"{count} {unit}s that leak most, with their scores"
    )


def effect_of_removal(records: Sequence[LeakingRecord]) -> str:
    """How removing repeated or outlying records or groups would change the attack's results; may be empty."""
    if any(record.records is not None for record in records):
        return _effect_by_reason(
            records, "groups", "Copies and shared records are what deduplicating would remove. That is"
        )
    stands_out = any(not reason.why.repeats for record in records for reason in record.reasons)
    return _effect_of_removing_repeats(records) + (_effect_by_reason(records, "members", "It is") if stands_out else "")


def _effect_of_removing_repeats(records: Sequence[LeakingRecord]) -> str:
    """How well an attack separates repeated members, and the predicted effect of removing them; may be empty."""
    repeated = [record for record in records if any(reason.why.repeats for reason in record.reasons)]
    if not repeated or len(repeated) == len(records):
        return ""
    attack = next(iter(repeated[0].nonmembers_as_high), "")
    gone = {(record.file, record.line) for record in repeated}
    others = [record for record in records if (record.file, record.line) not in gone]
    before, alone, after = (separation(subset, attack) for subset in (records, repeated, others))
    if before is None or alone is None or after is None:
        return ""
    area = [number(figures.auc, 3) for figures in (alone, after, before)]
    rate = [number(100 * figures.tpr, 3) for figures in (alone, after, before)]
    who = counted(alone.records, "member is repeated", "members are repeated")
    return "\n" + paragraph(
        f"{who} among the members, exactly or nearly (--leaks FILE says which): their {attack} AUC is {area[0]}, and "
        f"{rate[0]} % of them score higher than 99 % of the non-members. Without them the AUC of all would be "
        f"{area[1]} instead of {area[2]}, and {rate[1]} % instead of {rate[2]} % would score so high. Ties count as "
        "lost. This is a prediction from these scores; a model trained without them may expose other records more."
    )


def _effect_by_reason(records: Sequence[LeakingRecord], who: str, remark: str) -> str:
    """A table, by reason, of how well an attack separates outlying records, and the others; empty if there are none."""
    attack = next((name for record in records for name in record.nonmembers_as_high), "")
    whole = separation(records, attack)
    rows = []
    for why in Why:
        those = [record for record in records if any(reason.why is why for reason in record.reasons)]
        others = [record for record in records if all(reason.why is not why for reason in record.reasons)]
        alone, after = separation(those, attack), separation(others, attack)
        if alone is not None and after is not None:
            shown = [(number(figures.auc, 3), f"{number(100 * figures.tpr, 3)} %") for figures in (alone, after)]
            rows.append((str(why), str(alone.records), *shown[0], *shown[1]))
    if whole is None or not rows:
        return ""
    return (
        "\n"
        + table((f"{who} with", "number", "their AUC", "beyond 99 %", "AUC of the others", "beyond 99 %"), rows)
        + paragraph(
            f"How well {attack} recognizes these {who}, and the others if these were removed; for all, its AUC is "
            f"{number(whole.auc, 3)}. Ties count as lost. Beyond 99 %: the share that scores higher than 99 % of the "
            "non-members. "
            f"{remark} a prediction from these scores; a model trained without them may expose other records more.",
            indent=2,
            hanging=2,
        )
    )
