"""Markdown: reports, model cards and the gate's judgement."""
