"""What a running training says of itself, on the terminal and in logs, and what is withheld from them."""
