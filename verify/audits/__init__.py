"""Recomputes what an audit report states from its counts, its ranks and its files."""
