"""One audit from its options to its report; all parts judge the scores of one pass."""
