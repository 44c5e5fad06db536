"""Models and tokenizers from disk, their inputs, and what a task's losses and scores are."""
