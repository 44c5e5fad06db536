"""Mechanisms: what is added to what, how far one record can move it, and what follows. One module a mechanism."""
