"""The policy that ``privctl gate --init`` prints; ``privctl.gate.policy`` reads it."""

STARTER = """\
# privctl-policy.toml: what a model must meet before its release. Check it with
#   privctl gate REPORT... --model MODEL
# The same keys may be in pyproject.toml under [tool.privctl.gate]. A flag (--max-epsilon 4) overrides a variable
# (PRIVCTL_GATE_MAX_EPSILON=4), which overrides this file.

# At least one guarantee must count and have at most this epsilon. It counts if its delta is at most at_delta and its
# status is listed. proved: follows from what privctl enforced or checked; conditional: follows if assumptions hold that
# nobody checked; claimed: published, but does not follow.
max_epsilon = 8
at_delta = 1e-5
require = ["proved", "conditional"]

# Guarantees are recomputed from what the reports say was done.
recompute = true

# A conditional guarantee is only as good as its assumptions. Those about the loss (convex-loss, smooth-loss, ...),
# about another program's training loop (own loop, reported ledger), and about scores that privctl did not compute
# (scores of the model) are accepted only if listed here. If you list any, no others are accepted.
# accepted_assumptions = ["starting weights", "vocabulary"]

# Whose presence is protected, and against which neighbours.
units = ["example"]
notions = ["approximate-dp"]
adjacencies = ["add-or-remove", "replace-one", "zero-out"]
# protects = "patient"        # all records with one value of this field together, as training with --unit patient does
# scope = "all-candidates"    # if several candidates of one noise run are released

# The model and its history.
require_model = true          # --model must be given, and be the one that the reports describe
# require_signer = ["ci.pub"] # each report must be signed by one of these keys (privctl sign)
# require_audit_log = ["model.audits.jsonl"]  # must be complete; the report of every audit in it must be given
# audit_log_head = ["blake3:..."]             # the head that the gate printed last time; the log must still contain it
required_steps = ["audit"]    # of retrain, external-training, noise, replay, audit, ...
max_age_days = 90

# What attacks may find, judged by the upper bound of the interval. An audit too small to decide is inconclusive.
max_auc = 0.6
# max_tpr = 0.05              # at a false positive rate of at_fpr
# at_fpr = 0.01
# max_extracted = 0.01        # share of training texts that the model reproduces word for word
# max_exposure = 12           # bits, of planted canaries
# max_disclosed = 0.05        # share of planted canaries that the model completes
# max_epsilon_lower_bound = 4
# max_posterior = 0.1         # probability of guessing a secret that a plan protects

# The leaks that the audit must have been able to detect.
# min_power = { auc = 0.55, epsilon = 4, extraction = 0.01 }

# What the model must be good for, by held-out records (retrain --held-out). A model at chance meets every limit above.
# min_accuracy = 0.8
# max_loss = 3.5              # nats

# A REFUTED verdict fails the gate; this makes INCONCLUSIVE ones count too. One exception: an audit that tells members
# from non-members passes if max_epsilon and max_auc are both met and no attack finds more than the guarantee allows.
# forbid_outcomes = ["REFUTED", "INCONCLUSIVE"]

# Findings that are accepted until a date. A reason and an expiry date are required.
# [[waiver]]
# id = "PRIV-1"
# rule = "max_auc"
# subject = "loss AUC"        # optional: only this finding of the rule
# reason = "customer data is public already, see ticket 17"
# expires = 2030-01-31
"""
