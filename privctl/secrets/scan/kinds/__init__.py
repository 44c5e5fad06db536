"""The table of what is looked for without being named: kinds of identifiers with a form of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privctl.domain.errors import CommandError
from privctl.secrets.scan.kinds import cards, emails, ibans, keys, phones
from privctl.secrets.scan.kinds.place import Find

LITERAL = "literal"
RARE = "rare-word"
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKind:
    """One kind of secret: how it is found, and whether the user ``named`` it (then nothing stands in its way).

    With ``digits`` there is none in a text without a digit from 0 to 9, and none is looked for.
    """

    name: str
    find: Find
    digits: bool = False
    named: bool = False


#: Where two of them claim the same characters, the one first in this table has them: checked digits before unchecked.
KINDS: dict[str, SecretKind] = {
    kind.name: kind
    for kind in (
        SecretKind(name="card", find=cards.find, digits=True),
        SecretKind(name="iban", find=ibans.find, digits=True),
        SecretKind(name="key", find=keys.find),
        SecretKind(name="email", find=emails.find),
        SecretKind(name="phone", find=phones.find, digits=True),
    )
}


def chosen(names: Sequence[str]) -> list[SecretKind]:
    """The kinds called ``names`` in the table's order, all of them for no names, none for ``none``.

    Raises CommandError for a name that is not in the table.
    """
    if list(names) == [NONE]:
        return []
    for name in names:
        if name not in KINDS:
            raise CommandError(
                f"--kinds {name} is not one of {', '.join(KINDS)}; give some of these, or {NONE} to look only for what "
                "other options name"
            )
    return [kind for name, kind in KINDS.items() if name in names or not names]
