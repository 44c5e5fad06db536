"""Privacy reports: JSON and back, on disk, and their signatures."""
