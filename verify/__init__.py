"""Verifiers: each checks the claims of a report without sharing code with what computed them."""
