"""Recomputes every bound from its definition, with certified ends, by other methods than the accounting's.

Written a second time on purpose: code shared with ``privctl.accounting`` would confirm its own errors.
"""
