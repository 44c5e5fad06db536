"""Whole runs: from a prepared job to the released model, or to the plan of one."""
