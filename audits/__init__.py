"""Attacks on a model: what it reveals about its training data.

A new membership attack is one file and one row here. Those of ``ATTACKS`` use the same table of per-token scores,
computed in one forward pass; those of ``THOROUGH`` may query the model further. A higher score always means more
member-like.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audits.membership.attack import Attack

#: Attack name -> location, for the attacks that run by default. docs/attacks.md explains each.
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
    "min-k++-all": "audits.membership.min_k:MIN_K_PLUS_ALL",
    "quantile": "audits.membership.quantile:ATTACK",
    "reference": "audits.membership.reference:ATTACK",
}
#: The same for attacks that run only on request, by name or all together.
THOROUGH: dict[str, str] = {
    "min-k++-half": "audits.membership.min_k:MIN_K_PLUS_HALF",
    "surp": "audits.membership.surprise:ATTACK",
    "slope": "audits.membership.course:SLOPE",
    "rises": "audits.membership.course:RISES",
    "neighbour": "audits.membership.neighbours:NEIGHBOUR",
    "pac": "audits.membership.neighbours:PAC",
    "repeat": "audits.membership.neighbours:REPEAT",
    "recall": "audits.membership.prefixes:RECALL",
    "con-recall": "audits.membership.prefixes:CON_RECALL",
    "augmented": "audits.membership.augmented:AUGMENTED",
    "label-only": "audits.membership.augmented:LABEL_ONLY",
    "gradient-norm": "audits.membership.gradients:GRADIENT_NORM",
    "gradient-alignment": "audits.membership.gradients:GRADIENT_ALIGNMENT",
}
#: The fusion of all scores: judged beside the attacks, or alone if requested by name.
FUSED = "fused"


def load_attack(name: str) -> Attack:
    """The attack called ``name``, which must be in ``ATTACKS`` or ``THOROUGH``."""
    module, attribute = (ATTACKS | THOROUGH)[name].split(":")
    attack: Attack = getattr(importlib.import_module(module), attribute)
    return attack
