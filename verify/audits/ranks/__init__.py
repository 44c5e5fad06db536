"""Tests and bounds that audits derive from ranks of scores."""
