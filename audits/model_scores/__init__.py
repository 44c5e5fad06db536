"""Audits of many models, trained with or without a record, by one score per model."""
