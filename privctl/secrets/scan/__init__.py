"""Finding secrets in data: by known formats, by what the user names, by rare words; and the records of each."""
