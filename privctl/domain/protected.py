"""What one example is, where a guarantee protects more than a record at once."""

from __future__ import annotations

from privctl.domain.guarantee import Guarantee

_NAME, _SEVERAL = "unit of privacy", "all records"


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
