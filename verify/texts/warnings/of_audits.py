"""Every warning that an audit writes into its report; ``verify.texts.warnings.table`` has those of other steps."""

from __future__ import annotations

from verify.texts.warnings import of_canaries, of_extraction, of_membership, of_scores
from verify.texts.warnings.forms import NAME, form

PRIVATE = form(
    "this report and its scores are not for release: they hold exact counts and rates of the audited records, and no "
    "guarantee covers them"
)
IN_BFLOAT16 = form(
    "all models were run in bfloat16, their weights rounded to it: scores of members and of others are rounded alike, "
    "and an attack may find less than in float32"
)


#: The text of each warning by name, as a regular expression for the whole text.
TEXTS: dict[str, str] = {
    "private report": PRIVATE,
    "bfloat16": IN_BFLOAT16,
    "unusable report": form(
        "the model names a report of how it was made, which cannot be used: {why}", why=".+"
    ),
    "missing report": form("the model names a report of how it was made, but {name} is not a file", name=NAME),
    "report of other weights": form(
        "the model names {name} as its report, but that report is about other weights", name=NAME
    ),
    "other bits": form(
        "the training held the adapter's base in as many bits as its report's base_bits says, and this audit did not: "
        "what is audited answers differently from what was trained; give --base-bits 4 if, and only if, the report has "
        "it"
    ),
    **of_membership.TEXTS, **of_scores.TEXTS, **of_canaries.TEXTS, **of_extraction.TEXTS,
}  # fmt: skip
