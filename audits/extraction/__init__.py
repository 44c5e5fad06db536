"""Extraction: does the model, given the beginning of a training record, go on with the record's own words?"""
