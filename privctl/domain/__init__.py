"""The words privctl thinks in: frozen values, standard library only.

Every other package imports from here; nothing here imports another package.
"""
