"""What one example is, where a guarantee protects more than a record at once."""

from __future__ import annotations

from privctl.domain.guarantee import Guarantee

_NAME, _SEVERAL, _GROUP = "unit of privacy", "all records", "one example is a group of records"


def meaning_of_example(guarantee: Guarantee) -> str:
    """Such as "all records with one value of 'who'"; empty where each record is one."""
    stated = (assumption.statement for assumption in guarantee.assumptions if assumption.name == _NAME)
    return next(
        (
            statement.partition(" are one example")[0].removesuffix(",")
            for statement in stated
            if statement.startswith(_SEVERAL)
        ),
        "",
    )


def is_of_users(guarantee: Guarantee) -> bool:
    """Whether an example is all records of a user, or a group of records that enter batches on their own."""
    grouped = (assumption.statement.startswith(_GROUP) for assumption in guarantee.assumptions)
    return bool(meaning_of_example(guarantee)) or any(grouped)
