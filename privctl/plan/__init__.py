"""Planning a private run: one mechanism, every way of accounting for it, and what it leaves an attacker."""
