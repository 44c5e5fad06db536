"""Noise on float32 and half-precision numbers as machine code, made at run time where llvmlite is installed."""
