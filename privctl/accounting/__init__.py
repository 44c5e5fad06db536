"""Accounting: from public parameters to guarantees. Every other package gets its epsilon here."""
