"""Output: text for terminals, Markdown, HTML, pictures and formats for other programs, made from domain values."""
