"""The scores of all attacks fused into one, as another attack; see ``audits.statistics.fused``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from audits import FUSED
from audits.membership.attack import RATES, AttackResult, Candidates, ScoreAttack, Settings, curve_evidence
from audits.statistics.fitted import WIDENED, interval, widened
from audits.statistics.fused import FusedScore
from audits.statistics.relabel import data_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = FUSED
#: The AUC, the TPR at each of ``RATES``, and the difference from the blind baseline's AUC.
QUANTITIES = 2 + len(RATES)
#: With fewer records per side, the fused score learns nothing that a single score does not show; a group tells more
#: than a record.
LEAST, LEAST_GROUPS = 100, 20


def why_not_fused(candidates: Candidates, attacks: Sequence[ScoreAttack], *, groups: bool = False) -> str:
    """Why the scores of ``attacks`` are not fused; empty if they are."""
    if len(attacks) < 2:
        return "it joins the scores of two attacks or more"
    least, unit = (LEAST_GROUPS, "groups of ") if groups else (LEAST, "")
    if min(candidates.table.samples.values()) < least:
        return f"it learns which scores to trust from at least {least} {unit}members and as many {unit}non-members"
    return ""


def fuse(candidates: Candidates, tested: Mapping[str, NDArray[Any]], rates: tuple[float, ...] = RATES) -> FusedScore:
    """The fused score of the label-free scores ``tested`` [records] by attack.

    The permutation test uses its AUC and its TPR at each of the false positive ``rates``.
    """
    digests = [record.digest for record in candidates.records]
    return FusedScore(
        scores=tested,
        digests=digests,
        members=candidates.table.samples["members"],
        rates=rates,
        seed=data_seed(digests),
    )


def result_of(fused: FusedScore, member: NDArray[np.bool_], settings: Settings) -> AttackResult:
    """The result of the fused score as an attack.

    The AUC's interval is that of ``fitted``, as the errors of cross-fitted scores are correlated.
    """
    scores = fused.fitted(member[None])[0]
    area, *rates = curve_evidence(NAME, scores, member, settings)
    stderr = widened(scores, member, fused.law.deviation)
    lower, upper = interval(float(area.estimate or 0.0), stderr, settings.confidence, fused.law)
    area = replace(area, lower=lower, upper=upper, interval=WIDENED, details={**fused.law.details, "stderr": stderr})
    return AttackResult(evidence=(area, *rates), scores=scores)
