"""Planning a private run: one mechanism, the bounds of every accountant, and what they leave an attacker."""
