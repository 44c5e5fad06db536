"""Checks before and after loading a model: its files can only yield the digested weights, within bounded memory."""
