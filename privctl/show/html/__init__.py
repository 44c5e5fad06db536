"""The HTML page: one file that needs no network."""
