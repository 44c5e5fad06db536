"""Certified rational enclosures of the numbers that privacy claims are made of, from ball arithmetic.

Nothing here shares code with the accountants: every formula is written down again, from its paper.
"""
