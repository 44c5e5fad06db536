"""Scores of single records in files: written by many processes or by another tool, and judged without the model."""
