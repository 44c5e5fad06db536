"""Drawings as SVG: shapes whose texts are escaped where they are made, axes, and rows of dots."""
