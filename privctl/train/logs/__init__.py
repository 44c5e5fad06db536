"""The metrics of a running training on the terminal and in logs, and what is withheld from both."""
