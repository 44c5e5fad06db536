"""The steps of a training: batches, clipped gradients, noise, the optimizer."""
