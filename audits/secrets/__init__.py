"""Reconstruction of secrets: can what a book of secrets holds be told from other values it could have had?"""
