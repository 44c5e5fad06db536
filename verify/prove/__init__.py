"""Proofs by a solver that are not vacuous: the assumptions are satisfiable, and the negated claim is not.

Theorems are SMT-LIB text, so that any other solver can check them.
"""
