"""One forward pass from records to the table of per-token scores that every attack uses."""
