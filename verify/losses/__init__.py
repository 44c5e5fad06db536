"""Discretized privacy losses of one step or one pass, bounded from both sides, from which events are built."""
