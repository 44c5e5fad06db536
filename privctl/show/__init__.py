"""One module an output format; all take domain values and return text."""
