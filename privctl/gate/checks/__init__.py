"""The table of all rules: what each requires, and the function that checks it."""

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
    utility,
)
from privctl.gate.judged_model import MODEL, JudgedModel
from privctl.gate.policy import Policy
from privctl.gate.report_set import CHAIN, READABLE

Check = Callable[[JudgedModel, Policy], Iterator[Finding]]

#: Rules that are checked for every model, in the order in which they are shown.
CHECKS: dict[str, tuple[str, Check]] = {
    signatures.RULE: ("every report is signed by a signer that the policy trusts", signatures.check),
    audit_log.LOG: ("the audit log is complete, and contains the audits given", audit_log.check_logs),
    audit_log.SHOWN: ("the report of every audit in the log was given", audit_log.check_reports_given),
    contradictions.RULE: ("no report contradicts itself", contradictions.check),
    guarantees.EPSILON: ("a guarantee that counts has a small enough epsilon", guarantees.epsilon),
    guarantees.POSTERIOR: ("secrets are protected well enough", guarantees.posterior),
    protected.RULE: ("a guarantee that counts protects the unit that the policy names", protected.check),
    recomputed.RULE: ("guarantees follow from what their reports say was done", recomputed.check),
    leakage.AUC: ("no attack tells members from non-members too well", leakage.auc),
    leakage.TPR: ("no attack finds too many members at few false positives", leakage.tpr),
    leakage.EXPOSURE: ("no planted canary is exposed too much", exposure.check),
    leakage.DISCLOSED: ("the model completes few planted canaries", leakage.disclosure),
    leakage.EXTRACTED: ("little training text can be extracted from the model", leakage.extraction),
    leakage.LOWER_BOUND: ("no audit certifies too large an epsilon", leakage.lower_bound),
    power.RULE: ("audits could have detected leaks of the size that the policy names", power.check),
    utility.ACCURACY: ("the model is accurate enough on held-out records", utility.accuracy),
    utility.LOSS: ("the model's loss on held-out records is small enough", utility.loss),
    steps.STEPS: ("every required step was done", steps.required),
    steps.VERDICTS: ("no verdict stops the build", steps.verdicts),
    steps.AGE: ("reports are recent enough", steps.age),
}
_BELIEF = {
    READABLE: "every report can be read",
    CHAIN: "reports build on each other as their digests state",
    MODEL: "the reports are about the model given",
}
#: Rules of ``CHECKS`` that decide whether reports can be trusted; no waiver covers them.
_ABOUT_TRUTH = frozenset({contradictions.RULE, recomputed.RULE, signatures.RULE, audit_log.LOG})
RULES: dict[str, Rule] = {
    **{name: Rule(name=name, about=about, waivable=False) for name, about in _BELIEF.items()},
    **{
        name: Rule(name=name, about=about, waivable=name not in _ABOUT_TRUTH)
        for name, (about, _) in CHECKS.items()
    },
}  # fmt: skip
