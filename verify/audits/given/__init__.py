"""Audits of scores that privctl did not make."""
