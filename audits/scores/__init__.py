"""From records to the table of per-token scores that every attack reads, in one forward pass."""
