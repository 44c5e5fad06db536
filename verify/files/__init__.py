"""Files that a report names, where they are at hand: whether they are those, and lead nowhere else."""
