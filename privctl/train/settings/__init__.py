"""What is asked for: requests, the settings of methods, the recipe of a run, and who watches it."""
