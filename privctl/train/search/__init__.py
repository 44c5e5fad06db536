"""Private searches: several runs, of which the best is released."""
