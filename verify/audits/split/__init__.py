"""Splits that privctl drew: their coins, their groups, and guesses at them."""
