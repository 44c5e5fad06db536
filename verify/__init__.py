"""Verifiers: each checks what a report claims without sharing the code that claimed it."""
