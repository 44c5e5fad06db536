"""Telling members of the training data from records that were not in it: one module per attack."""
