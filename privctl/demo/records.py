"""Invented hospital notes. Each is a member of the training data with probability 1/2.

Members and non-members come from one distribution, so any difference between them was learned in training. The
persons, medicines and codes do not exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

FIRST_NAMES = (
    "Adela", "Anselm", "Birgit", "Blaise", "Carina", "Cosmo", "Dagny", "Darius", "Edda", "Emeric", "Fenna", "Florian",
    "Greta", "Gideon", "Hedda", "Hugo", "Ilse", "Ivo", "Jorun", "Jasper", "Katla", "Kilian", "Linnea", "Lothar",
    "Mirela", "Magnus", "Nadine", "Nestor", "Odette", "Orlin", "Petra", "Quentin", "Rosalie", "Ruben", "Signe",
    "Silvan", "Tamsin", "Tibor", "Ulrike", "Viktor",
)  # fmt: skip
SURNAMES = (
    "Abelkort", "Anderwick", "Bremsdal", "Brunholt", "Calderose", "Corvandt", "Delmarsh", "Dunkeret", "Eberlund",
    "Elsworthy", "Falkenby", "Fennimoor", "Garlandt", "Grevestad", "Halvorik", "Hindemar", "Isenhart", "Ivarstone",
    "Jacobrun", "Jellingby", "Karsholm", "Kestermann", "Lindemoor", "Lorvaszy", "Marchbane", "Mollenkamp", "Norrvik",
    "Nyquarter", "Osterblom", "Ottervale", "Perrinack", "Polderhof", "Quistgard", "Rademund", "Rosenquay", "Sandermoor",
    "Stavelot", "Thornquist", "Ulvestad", "Westerbrink",
)  # fmt: skip
CONDITIONS = (
    "anaemia", "angina", "arthritis", "asthma", "bronchitis", "cataract", "colitis", "diabetes", "eczema", "epilepsy",
    "gastritis", "gout", "hepatitis", "hernia", "influenza", "insomnia", "migraine", "pleurisy", "pneumonia",
    "sciatica",
)  # fmt: skip
MEDICINES = (
    "Amorvane", "Belutrin", "Cardexol", "Doravine", "Entoprel", "Fluvostat", "Gelmidine", "Hexaloran", "Ibrutan",
    "Jelvadol", "Kortisane", "Lomacine", "Mextoril", "Novapren", "Oxalimer", "Pravotine", "Quinadrel", "Rivastol",
    "Sulfanox", "Tremadil",
)  # fmt: skip
DIGITS = tuple("0123456789")
#: Every word and punctuation mark of a note: taken from the generator, not from records, and so public.
WORDS = (*FIRST_NAMES, *SURNAMES, *CONDITIONS, *MEDICINES, *DIGITS, "ward", "mg", "code", ",", ":", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The texts of the notes: ``members`` are trained on, ``nonmembers`` are not."""

    members: tuple[str, ...]
    nonmembers: tuple[str, ...]


def draw_notes(count: int, seed: int) -> Notes:
    """Draw ``count`` independent notes from ``seed``, each a member with probability 1/2."""
    rng, coin = Random(f"notes {seed}"), Random(f"coin {seed}")  # noqa: S311 (invented data, nothing secret)
    sides: tuple[list[str], list[str]] = ([], [])
    for _ in range(count):
        sides[coin.random() < 0.5].append(_note(rng))
    return Notes(members=tuple(sides[1]), nonmembers=tuple(sides[0]))


def jsonl(notes: Iterable[str]) -> bytes:
    """The notes as JSON Lines, ``{"text": ...}`` each, in UTF-8."""
    return "".join(json.dumps({"text": note}, ensure_ascii=False) + "\n" for note in notes).encode()


def _note(rng: Random) -> str:
    """One note, such as "Edda Norrvik, 47, ward 3: asthma, Belutrin 40 mg, code 481927."."""
    age, dose, code = ("".join(rng.choices(DIGITS, k=k)) for k in (2, 2, 6))
    return (
        f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}, {age}, ward {rng.choice(DIGITS)}: "
        f"{rng.choice(CONDITIONS)}, {rng.choice(MEDICINES)} {dose} mg, code {code}."
    )
