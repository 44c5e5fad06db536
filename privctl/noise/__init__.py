"""Noise on finished weights: training facts, sensitivity, selection of tensors, and writing the result."""

from privctl.callable_package import make_callable

make_callable(__name__)  # privctl.noise(...)
