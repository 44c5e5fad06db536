"""The policy that a user begins with; everything in it is read by ``privctl.gate.policy``."""

STARTER = """\
# privctl-policy.toml: what a model must meet before its release. Check it with
#   privctl gate REPORT... --model MODEL
# The same keys may stand in pyproject.toml under [tool.privctl.gate]. A flag (--max-epsilon 4) wins over a variable
# (PRIVCTL_GATE_MAX_EPSILON=4), which wins over this file.

# At least one guarantee must be this good and count: its delta is no larger than at_delta, and its status is listed.
#   proved: follows from what privctl enforced; conditional: if assumptions hold that nobody checked;
#   claimed: published, does not follow.
max_epsilon = 8
at_delta = 1e-5
require = ["proved", "conditional"]

# What is guaranteed is computed again from what the reports say was done.
recompute = true

# A conditional guarantee is worth what its assumptions are. Those about the loss (convex-loss, smooth-loss, ...), and
# that another program's loop trained as it says (own loop, reported ledger), count only where they are listed. So does
# an audit of scores that privctl did not make (scores of the model). List the ones you stand behind; no others count.
# accepted_assumptions = ["starting weights", "vocabulary"]

# Whose presence is protected, and against which neighbours.
units = ["example"]
notions = ["approximate-dp"]
adjacencies = ["add-or-remove", "replace-one", "zero-out"]
# protects = "patient"        # all records with one value of this field together, as training with --unit patient does
# scope = "all-candidates"    # where several candidates of one noise run go out

# The model, its history and what was done with it.
require_model = true          # --model must be given, and be the one the reports describe
# require_signer = ["ci.pub"] # each report must be signed by one of these keys (privctl sign)
# require_audit_log = ["model.audits.jsonl"]  # every audit in it must be among the reports, and it must be whole
# audit_log_head = ["blake3:..."]             # what this gate printed last time: the log must go on from there
required_steps = ["audit"]    # of retrain, external-training, noise, replay, audit, ...
max_age_days = 90

# What attacks may find. Judged by the upper bound of the interval: an audit too small to tell is inconclusive.
max_auc = 0.6
# max_tpr = 0.05              # at a false positive rate of at_fpr
# at_fpr = 0.01
# max_extracted = 0.01        # share of training texts that come out word for word
# max_exposure = 12           # bits, of planted canaries
# max_disclosed = 0.05        # share of planted canaries that the model completes
# max_epsilon_lower_bound = 4
# max_posterior = 0.1         # of secrets protected by a plan

# What the audit must have been able to see.
# min_power = { auc = 0.55, epsilon = 4, extraction = 0.01 }

# A verdict REFUTED fails the gate; this makes an INCONCLUSIVE one stop it too. One REFUTED passes: that members can be
# told from non-members, where max_epsilon and max_auc are both met and attacks find no more than the guarantee allows.
# forbid_outcomes = ["REFUTED", "INCONCLUSIVE"]

# What is accepted for a time. Without a reason and a day of expiry it is an error.
# [[waiver]]
# id = "PRIV-1"
# rule = "max_auc"
# subject = "loss AUC"        # optional: only this finding of the rule
# reason = "customer data is public already, see ticket 17"
# expires = 2030-01-31
"""
