"""Shared by the Python examples: options, resumable results, calls of privctl, tables and plots.

An example defines its cells (the combinations of settings), how a cell is measured, a table and a plot, and combines
them in a ``running.Example``.
"""
