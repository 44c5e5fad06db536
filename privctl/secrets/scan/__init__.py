"""Finds secrets in data, with the records of each: by known formats, by what the user specifies, and by rare words."""
