"""The theorems: one module a subject, functions from numbers to what is to be proved of them."""
