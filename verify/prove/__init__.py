"""Proofs by a solver that mean something: assumptions that can hold, and a negated claim that cannot.

A theorem is SMT-LIB text, so that what is proved here is what any other solver can check.
"""
