"""One audit from its options to its report: every part judges the scores of one pass."""
