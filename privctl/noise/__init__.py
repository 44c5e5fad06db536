"""Noise on finished weights: training facts, sensitivity, selection of tensors, and writing the result."""

import privctl

privctl.make_callable(__name__)  # privctl.noise(...)
