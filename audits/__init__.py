"""Attacks on a model: what can be told of its training data by looking at it.

Adding an attack is one file and one row here. Every attack reads the same table of per-token scores, which one
forward pass made; a higher score always means more member-like.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from audits.scores import ScoreTable
    from privctl.domain.evidence import Evidence

#: Attack name -> (where its class is, one line for ``--help``).
ATTACKS: dict[str, tuple[str, str]] = {
    "loss": ("audits.loss:LossAttack", "members have a lower loss (AUC, TPR at 1 % and 0.1 % FPR)"),
    "midpoint": ("audits.midpoint:MidpointAttack", "loss below the midpoint of the two mean losses (accuracy, F1)"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSettings:
    """What an attack may be told: the seed of its splits (not private) and the confidence of each interval."""

    seed: int = 0
    confidence: float = 0.95


class Attack(Protocol):
    """A way to tell members from non-members."""

    def run(self, scores: ScoreTable, settings: AttackSettings) -> Sequence[Evidence]:
        """What the attack found; the first item is the quantity it is judged by, and always has ``chance``."""


def load_attack(name: str) -> Attack:
    """The attack called ``name``, which must be in ``ATTACKS``."""
    module, attribute = ATTACKS[name][0].split(":")
    attack: Attack = getattr(importlib.import_module(module), attribute)()
    return attack
