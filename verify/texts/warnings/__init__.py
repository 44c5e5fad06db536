"""The texts of warnings, one module per subject."""
