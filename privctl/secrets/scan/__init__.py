"""Finding secrets in data: what looks like one, what the user names, what is rare, and which records hold each."""
