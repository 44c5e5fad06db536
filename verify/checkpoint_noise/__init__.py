"""The noise between two checkpoints, measured: the released model and the one that it was made from."""
