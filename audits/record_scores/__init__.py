"""Scores of single records in files: made without gathering them, or by another tool, and judged without the model."""
