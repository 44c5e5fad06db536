"""Text for a terminal, one module a command."""
