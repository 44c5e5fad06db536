"""Whether a report is complete and agrees with itself, and what its guarantees rest on."""
