"""Retraining a model: with a guarantee, with clipped gradients only, or plainly."""
