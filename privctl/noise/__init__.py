"""Noise on finished weights: training facts, how far one record can move weights, which tensors, and writing them."""
