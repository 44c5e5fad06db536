"""Reconstruction of secrets: can the values in a book of secrets be distinguished from other possible values?"""
