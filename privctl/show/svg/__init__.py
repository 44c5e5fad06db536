"""SVG drawings: shapes with escaped text, axes, rows of dots, and the comparison of models."""
