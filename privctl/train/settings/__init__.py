"""Requests, the settings of methods, the recipe of a run, and the session that it runs in."""
