"""Noise on float32 and half-precision numbers by machine code, compiled at run time if llvmlite is installed."""
