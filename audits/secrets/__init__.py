"""Reconstruction of secrets: can the values in a book of secrets be told from other possible values?"""
