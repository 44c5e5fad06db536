"""Whole runs, from a prepared job to the released model or to a dry run's plan."""
