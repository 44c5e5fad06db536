"""The loss attack: a model gives the records it was trained on a higher likelihood (Yeom et al. 2018)."""

from __future__ import annotations

from audits.membership.attack import ScoreAttack

#: Scores a record by the mean log-probability of its tokens or its label.
ATTACK = ScoreAttack(name="loss", score=lambda candidates, _: candidates.mean_lp, alone=True)
