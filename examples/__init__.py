"""Scripts that show privctl at work; the Python ones share ``harness``."""
