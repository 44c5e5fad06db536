"""Checks on the counts and tests of extraction audits."""
