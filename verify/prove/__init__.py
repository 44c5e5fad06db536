"""Proofs by a solver that are not vacuous: the assumptions can hold, and the negated claim cannot.

A theorem is SMT-LIB text, so that any other solver can check it.
"""
