"""The words privctl thinks in: frozen values, standard library only.

Every other room imports from here; nothing here imports another room.
"""
