"""The built-in kinds of secrets: identifiers with a recognizable format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privctl.domain.errors import CommandError
from privctl.secrets.scan.kinds import cards, emails, health, ibans, keys, phones
from privctl.secrets.scan.kinds.place import Find

LITERAL = "literal"
RARE = "rare-word"
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKind:
    """One kind of secret, and how it is found; with ``by_user`` the user specified it, and its matches always count.

    With ``digits``, texts without a digit from 0 to 9 are skipped.
    """

    name: str
    find: Find
    digits: bool = False
    by_user: bool = False


#: If two of them match the same characters, the first in this table wins: kinds with check digits come first.
KINDS: dict[str, SecretKind] = {
    kind.name: kind
    for kind in (
        SecretKind(name="card", find=cards.find, digits=True),
        SecretKind(name="iban", find=ibans.find, digits=True),
        SecretKind(name="nhs", find=health.find_nhs, digits=True),
        SecretKind(name="ssn", find=health.find_ssn, digits=True),
        SecretKind(name="mrn", find=health.find_records, digits=True),
        SecretKind(name="dob", find=health.find_births, digits=True),
        SecretKind(name="key", find=keys.find),
        SecretKind(name="email", find=emails.find),
        SecretKind(name="phone", find=phones.find, digits=True),
    )
}


#: Secrets that no kind finds, since they have no universal format.
WITHOUT_KIND = (
    "names of people",
    "postal addresses",
    "account numbers other than IBANs",
    "national identity, insurance and health numbers other than US SSN and NHS",
    "dates of birth and record numbers without a word that announces them",
)


#: The kind of Presidio's recognizer of people.
PERSON = "presidio-person"


def not_looked_for(names: Sequence[str]) -> tuple[str, ...]:
    """What a scan for the kinds ``names`` does not find: the kinds left out, then secrets without a kind."""
    without = WITHOUT_KIND[1:] if PERSON in names else WITHOUT_KIND
    return (*(f"the kind {name}" for name in KINDS if name not in names), *without)


def select_kinds(names: Sequence[str]) -> list[SecretKind]:
    """The kinds ``names`` in the table's order; all for an empty list, none for ``["none"]``.

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
