"""Splits drawn by privctl: their coins, their groups, and the guesses on them."""
