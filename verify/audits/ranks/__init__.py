"""What audits conclude from ranks of scores."""
