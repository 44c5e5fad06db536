"""Attacks on a model: what can be told of its training data by looking at it.

Adding a membership attack is one file and one row here. Every attack reads the same table of per-token scores, which
one forward pass made; a higher score always means more member-like.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audits.membership.attack import Attack

#: Attack name -> (where it is, one line for ``--help``).
ATTACKS: dict[str, tuple[str, str]] = {
    "loss": ("audits.membership.loss:ATTACK", "members have a lower loss"),
    "midpoint": ("audits.membership.midpoint:ATTACK", "loss below the midpoint of the two mean losses (accuracy, F1)"),
    "zlib": ("audits.membership.zlib_ratio:ATTACK", "the model's code length against zlib's"),
    "min-k": ("audits.membership.min_k:MIN_K", "the least likely fifth of a record's tokens (Min-K%)"),
    "min-k++": ("audits.membership.min_k:MIN_K_PLUS", "the same against what the model expects there (Min-K%++)"),
    "quantile": (
        "audits.membership.quantile:ATTACK",
        "loss against what is usual for such a text",
    ),
    "reference": ("audits.membership.reference:ATTACK", "loss against that of the --reference model"),
}


def load_attack(name: str) -> Attack:
    """The attack called ``name``, which must be in ``ATTACKS``."""
    module, attribute = ATTACKS[name][0].split(":")
    attack: Attack = getattr(importlib.import_module(module), attribute)
    return attack
