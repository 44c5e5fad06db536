"""Secrets in training data: finding them, planning their protection (Hush)."""
