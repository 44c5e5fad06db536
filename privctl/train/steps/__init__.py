"""One training step after another: batches, clipped gradients, noise, the optimizer."""
