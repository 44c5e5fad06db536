"""Members and non-members that look alike, chosen from two files that do not."""
