"""Models and tokenizers from disk, the encoding of their inputs, and the losses and scores of tasks."""
