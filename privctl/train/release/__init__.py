"""What a training leaves: the model or adapter, read again before it gets its name, and the report."""
