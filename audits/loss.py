"""The loss attack: a model gives the records it was trained on a higher likelihood (Yeom et al. 2018)."""

from __future__ import annotations

from audits import AttackSettings
from audits.metrics import CLOPPER_PEARSON, auc, tpr_at_fpr
from audits.scores import ScoreTable
from privctl.domain.evidence import Evidence

#: False positive rates that a TPR is reported at.
RATES = (0.01, 0.001)


class LossAttack:
    """Score a record by the mean log-probability of its tokens."""

    name = "loss"

    def run(self, scores: ScoreTable, settings: AttackSettings) -> list[Evidence]:
        """AUC, then the TPR at each of ``RATES``."""
        members, nonmembers = scores.split(scores.means(scores.lp))
        alpha = 1 - settings.confidence
        area = auc(members, nonmembers, alpha)
        evidence = [
            Evidence(
                method=self.name,
                quantity="AUC",
                estimate=area.value,
                lower=area.lower,
                upper=area.upper,
                confidence=settings.confidence,
                interval=area.interval,
                samples=scores.samples,
                details={"chance": 0.5},
            )
        ]
        for rate in RATES:
            point = tpr_at_fpr(members, nonmembers, rate, alpha)
            evidence.append(Evidence(
                method=self.name,
                quantity=f"TPR at {100 * rate:g} % FPR",
                estimate=None if point.reason else point.tpr,
                lower=None if point.reason else point.tpr_lower,
                upper=None if point.reason else point.tpr_upper,
                confidence=settings.confidence,
                interval=CLOPPER_PEARSON,
                samples=scores.samples,
                details={
                    # The threshold is read off the same non-members, so a guess exceeds the rate on average; only where
                    # the threshold certainly keeps to the rate does the interval compare with it.
                    **({"chance": rate} if point.certified else {}),
                    "threshold": point.threshold,
                    "true_positives": point.true_positives,
                    "false_positives": point.false_positives,
                    "fpr_upper": point.fpr_upper,
                    "fpr_certified": float(point.certified),
                },
                reason=point.reason,
            ))  # fmt: skip
        return evidence
