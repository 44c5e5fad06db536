"""Formats for other programs: JSON, GitHub annotations, in-toto, JUnit and SARIF."""
