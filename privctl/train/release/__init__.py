"""What a training releases: the model or adapter, read back before it gets its final name, and the report."""
