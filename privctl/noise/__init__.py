"""Noise on finished weights: training facts, sensitivity, selection of tensors, and writing the result."""
