"""Several runs, of which the best is released."""
