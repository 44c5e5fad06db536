"""Membership attacks, which distinguish records of the training data from others: one module per attack."""
