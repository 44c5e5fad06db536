"""The HTML page: one file, no network, one module a section."""
