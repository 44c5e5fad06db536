"""What would change if groups that stand out went, such as users with many records or with repeated ones."""

from __future__ import annotations

from collections.abc import Sequence

from privctl.domain.leaking import LeakingRecord, Why, told
from privctl.show.text.style import number, paragraph, table

_HEADINGS = ("groups with", "number", "their AUC", "beyond 99 %", "AUC of the others", "beyond 99 %")


def if_groups_went(records: Sequence[LeakingRecord]) -> str:
    """How well groups are told that stand out for each reason, and the others by themselves; empty if none does."""
    attack = next((name for record in records for name in record.nonmembers_as_high), "")
    whole = told(records, attack)
    rows = []
    for why in Why:
        those = [record for record in records if any(reason.why is why for reason in record.reasons)]
        others = [record for record in records if all(reason.why is not why for reason in record.reasons)]
        alone, after = told(those, attack), told(others, attack)
        if alone is not None and after is not None:
            shown = [(number(each.auc, 3), f"{number(100 * each.tpr, 3)} %") for each in (alone, after)]
            rows.append((str(why), str(alone.records), *shown[0], *shown[1]))
    if whole is None or not rows:
        return ""
    return (
        "\n"
        + table(_HEADINGS, rows)
        + paragraph(
            f"How well {attack} tells these groups, and the others if they were removed, where it tells all with an "
            f"AUC of {number(whole.auc, 3)}; beyond 99 %: the share that scores higher than 99 % of the non-members. "
            "Copies and shared records are what deduplicating would remove. That is a prediction from these scores, "
            "not a training without them, which may expose others more.",
            indent=2,
            hanging=2,
        )
    )
