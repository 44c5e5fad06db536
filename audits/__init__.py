"""Attacks on a model: what it reveals about its training data.

A new membership attack is one file and one row here. Every attack reads the same table of per-token scores, computed
in one forward pass; a higher score always means more member-like.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audits.membership.attack import Attack

#: Attack name -> where it is. docs/audits.md explains each.
ATTACKS: dict[str, str] = {
    "loss": "audits.membership.loss:ATTACK",
    "lira": "audits.membership.lira:OFFLINE",
    "lira-online": "audits.membership.lira:ONLINE",
    "rmia": "audits.membership.rmia:OFFLINE",
    "rmia-online": "audits.membership.rmia:ONLINE",
    "midpoint": "audits.membership.midpoint:ATTACK",
    "zlib": "audits.membership.zlib_ratio:ATTACK",
    "min-k": "audits.membership.min_k:MIN_K",
    "min-k++": "audits.membership.min_k:MIN_K_PLUS",
    "quantile": "audits.membership.quantile:ATTACK",
    "reference": "audits.membership.reference:ATTACK",
}


def load_attack(name: str) -> Attack:
    """The attack called ``name``, which must be in ``ATTACKS``."""
    module, attribute = ATTACKS[name].split(":")
    attack: Attack = getattr(importlib.import_module(module), attribute)
    return attack
