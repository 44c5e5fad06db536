"""Markdown: reports, model cards, the gate's judgement."""
