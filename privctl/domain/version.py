"""The version of privctl: ``pyproject.toml`` reads it, and reports state it."""

VERSION = "0.1.0"
