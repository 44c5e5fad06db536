"""Plots as SVG or PNG files."""
