"""The files that a report names, if present: whether they are the recorded ones, and load nothing else."""
