"""Attacks on a model: what it reveals about its training data.

A new membership attack is one file and one row here. Every attack reads the same table of per-token scores, computed
in one forward pass; a higher score always means more member-like.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audits.membership.attack import Attack

#: Attack name -> (where it is, one line for ``--help``).
ATTACKS: dict[str, tuple[str, str]] = {
    "loss": ("audits.membership.loss:ATTACK", "members have a lower loss"),
    "lira": ("audits.membership.lira:OFFLINE", "confidence beyond that of shadow models which did not see the record"),
    "lira-online": ("audits.membership.lira:ONLINE", "the same, against shadow models that did and did not"),
    "rmia": ("audits.membership.rmia:OFFLINE", "probability against that of shadow models, among the non-members"),
    "rmia-online": ("audits.membership.rmia:ONLINE", "the same, with shadow models that saw the record too"),
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
