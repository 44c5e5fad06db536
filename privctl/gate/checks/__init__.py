"""The closed table of rules: what each is about, and who checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from privctl.domain.gate import Finding, Rule
from privctl.gate.checks import (
    audit_log,
    contradictions,
    exposure,
    guarantees,
    leakage,
    power,
    protected,
    recomputed,
    signatures,
    steps,
)
from privctl.gate.judged_model import MODEL, JudgedModel
from privctl.gate.policy import Policy
from privctl.gate.report_set import CHAIN, READABLE

Check = Callable[[JudgedModel, Policy], Iterator[Finding]]

#: Rules that are looked at for every model, in the order in which they are shown.
CHECKS: dict[str, tuple[str, Check]] = {
    signatures.RULE: ("every report is signed by whom the policy trusts", signatures.check),
    audit_log.LOG: ("the log of audits is whole, and holds those given", audit_log.check_logs),
    audit_log.SHOWN: ("no audit in the log was left out", audit_log.check_reports_given),
    contradictions.RULE: ("reports agree with themselves", contradictions.check),
    guarantees.EPSILON: ("a guarantee that counts has a small enough epsilon", guarantees.epsilon),
    guarantees.POSTERIOR: ("secrets are protected well enough", guarantees.posterior),
    protected.RULE: ("a guarantee that counts protects whom the policy names", protected.check),
    recomputed.RULE: ("guarantees follow from what their reports say was done", recomputed.check),
    leakage.AUC: ("no attack tells members from non-members too well", leakage.auc),
    leakage.TPR: ("no attack finds too many members at few false positives", leakage.tpr),
    leakage.EXPOSURE: ("no planted canary stands out too far", exposure.check),
    leakage.DISCLOSED: ("the model completes few planted canaries", leakage.disclosure),
    leakage.EXTRACTED: ("the model writes little of its training text", leakage.extraction),
    leakage.LOWER_BOUND: ("no audit certifies too large an epsilon", leakage.lower_bound),
    power.RULE: ("audits could have detected what the policy asks", power.check),
    steps.STEPS: ("every step asked for was done", steps.required),
    steps.VERDICTS: ("no verdict stops the build", steps.verdicts),
    steps.AGE: ("reports are young enough", steps.age),
}
_BELIEF = {
    READABLE: "every report can be read",
    CHAIN: "reports build on each other as their digests say",
    MODEL: "the reports are about the model at hand",
}
#: Rules of ``CHECKS`` that say whether reports can be believed.
_ABOUT_TRUTH = frozenset({contradictions.RULE, recomputed.RULE, signatures.RULE, audit_log.LOG})
RULES: dict[str, Rule] = {
    **{name: Rule(name=name, about=about, waivable=False) for name, about in _BELIEF.items()},
    **{
        name: Rule(name=name, about=about, waivable=name not in _ABOUT_TRUTH)
        for name, (about, _) in CHECKS.items()
    },
}  # fmt: skip
