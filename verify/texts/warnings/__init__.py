"""The texts of warnings, one module a subject."""
