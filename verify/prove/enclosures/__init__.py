"""Certified rational enclosures of the numbers in privacy claims, from ball arithmetic.

Nothing here shares code with the accountants: every formula is implemented again from its paper.
"""
