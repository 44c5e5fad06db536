"""From texts to the table of per-token scores that every attack reads, by one forward pass."""
