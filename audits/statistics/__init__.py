"""What may be concluded from scores: intervals, tests and bounds, each with its condition. Numpy and scipy only."""
