"""privctl: make trained models safe to hand out, and prove how safe they are."""

__version__ = "0.1.0"
