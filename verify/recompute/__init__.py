"""Recomputes every bound from its definition, with certified error bounds, by other methods than the accounting's.

It is a second implementation on purpose: code shared with ``privctl.accounting`` would confirm its own errors.
"""
