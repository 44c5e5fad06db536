"""What the Python examples share: options, results that a stopped run goes on from, commands, tables and plots.

An example is its cells, how one is measured, its table and its plot; ``running.Example`` joins them.
"""
