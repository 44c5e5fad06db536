"""Training tasks: their examples, batches, losses and scores."""
