"""The ways to train: one folder each, with its settings, its step and its part of the report."""
