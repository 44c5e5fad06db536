"""Measures the noise between two checkpoints: the released model and the one it was made from."""
