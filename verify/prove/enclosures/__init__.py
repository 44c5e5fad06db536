"""Certified rational enclosures of the numbers in privacy claims, by ball arithmetic.

Nothing here shares code with the accountants: every formula is implemented from its paper.
"""
