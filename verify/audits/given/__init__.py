"""Audits of scores that were given to privctl rather than computed by it."""
