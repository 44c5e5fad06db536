"""Extraction: does the model, given the beginning of a training record, continue it word for word?"""
